// Where decoded values go: one column per feature, filled record by record.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "casts.hpp"
#include "tensor.hpp"

namespace dtf {

// The field numbers of the kinds in a Feature message.
enum class Kind : int { none = 0, bytes = 1, floats = 2, int64 = 3 };

enum class Layout : int {
    fixed = 0,    // the same number of values in every record, or in every step
    ragged = 1,   // any number of values
    raw = 2,      // one bytes value of a known size, copied into its slot
    skipped = 3,  // a key that is known and not wanted
    unset = 4,    // a key that must not hold a kind
    tensor = 5,   // one bytes value that is a TensorProto
    located = 6,  // floats of a known number, or one bytes value of a known size: only the byte where they begin
};

enum class Fault : int {
    none = 0,
    malformed = 1,    // no legal protobuf message
    not_example = 2,  // a legal message of another type
    missing = 3,      // a feature that the record lacks
    kind = 4,         // a list of another kind
    count = 5,        // another number of values
    size = 6,         // a raw value of another size
    utf8 = 7,         // text that is no UTF-8
    unknown_key = 8,  // a feature that the schema has not
    boolean = 9,      // a raw bool that is neither 0 nor 1
    full = 10,        // the memory lent for the column has no place for another record
    cast = 11,        // a value that the narrower type does not hold
    tensor = 12,      // bytes that are no TensorProto, or one of another dtype, shape or size
    scattered = 13,   // values that are to be located and do not lie one behind the other
};

struct Problem {
    Fault fault = Fault::none;
    int column = -1;          // index of the column, if it is one column's
    std::int64_t step = -1;   // of a feature list
    std::uint64_t found = 0;  // a Kind, a count, a size or a value, as the fault has it
    std::string text;         // of an unknown feature its key; of a tensor what was found
};

struct ColumnSpec {
    std::string key;
    Kind kind = Kind::none;
    Layout layout = Layout::skipped;
    std::size_t count = 1;  // fixed: values per record or step; ragged: the values are a multiple; raw: bytes;
                            // located: floats, or bytes of the one bytes value
    std::size_t swap = 1;   // raw: bytes per item whose order is turned round, 1 for none
    bool text = false;      // bytes values are UTF-8
    bool boolean = false;   // raw, located: every byte is 0 or 1
    bool list = false;      // a feature list of steps, each a Feature; fixed or ragged
    bool optional = false;  // a record may lack the list; or, where a fixed count is 0, all of the feature
    bool counted = false;   // values are judged and counted and not kept: what is left are splits and shapes
    Cast cast = Cast::none;
    std::vector<std::string> fallback;  // fixed: what a record without values has, as it is stored: all of it, or one
                                        // string for each bytes value; empty where such a record is refused
    TensorSpec tensor;
};

// Whether a size of the tensors differs from record to record.
inline bool is_open(const TensorSpec& spec) {
    return std::find(spec.shape.begin(), spec.shape.end(), -1) != spec.shape.end();
}

// Bytes of a tensor whose sizes are all known; the product is below 2^59.
inline std::size_t nbytes(const TensorSpec& spec) {
    std::size_t size = spec.item;
    for (const std::int64_t length : spec.shape) size *= static_cast<std::size_t>(length);
    return size;
}

class Column {
    // How much was read of a column: what came later is dropped by going back to it.
    struct Mark {
        std::size_t target = 0, value_splits = 0;
    };
    // The same of what is made when a step or a record is over; few columns have any.
    struct Derived {
        std::size_t values = 0, step_splits = 0, shapes = 0;
    };

    static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

    // What every record touches comes first, and lies together.
    std::uint64_t seen_ = never;
    std::uint64_t values_found_ = 0;
    Mark record_;
    Mark feature_;
    Kind found_ = Kind::none;
    bool plain_ = false;    // nothing is left to do for a record that has what it should
    bool single_ = false;   // and that is one value
    bool casts_ = false;    // numbers are cast when a record is over
    bool derived_ = false;  // something is made when a step or a record is over
    bool there_ = false;    // the record has the feature list
    ColumnSpec spec_;

public:
    explicit Column(ColumnSpec spec) : spec_(std::move(spec)) {
        plain_ = spec_.layout == Layout::fixed && !spec_.list && !spec_.text && spec_.cast == Cast::none;
        single_ = plain_ && spec_.count == 1 && (stores_bytes() || !spec_.counted);
        casts_ = spec_.cast != Cast::none;
        derived_ = spec_.list || casts_ || has_shapes();
        if (spec_.counted) values = Buffer::counter();
        if (has_rows()) row_splits.push(std::int64_t{0});
        if (stores_bytes()) value_splits.push(std::int64_t{0});
        if (has_steps()) step_splits.push(std::int64_t{0});
    }

    const ColumnSpec& spec() const { return spec_; }

    void expect(double times) {
        for (Buffer* buffer : {&values, &value_splits, &step_splits, &row_splits, &shapes}) buffer->expect(times);
    }

    bool stores_bytes() const {
        if (spec_.layout == Layout::tensor) return spec_.tensor.item == 0;
        return spec_.kind == Kind::bytes && (spec_.layout == Layout::fixed || spec_.layout == Layout::ragged);
    }
    // Rows end somewhere among the values, or among the steps.
    bool has_rows() const {
        return spec_.layout == Layout::ragged || (spec_.list && spec_.layout == Layout::fixed) || has_shapes();
    }
    bool has_steps() const { return spec_.list && spec_.layout == Layout::ragged; }
    // Every row is an array of a shape of its own.
    bool has_shapes() const { return spec_.layout == Layout::tensor && is_open(spec_.tensor); }

    // Bytes of a record's values in memory of a fixed size; `count` is below 2^59.
    std::size_t slot() const {
        if (spec_.layout == Layout::located) return sizeof(std::int64_t);
        if (spec_.layout == Layout::raw) return spec_.count;
        if (spec_.layout == Layout::tensor) return nbytes(spec_.tensor);
        return spec_.count * item();
    }

    bool full() const { return values.borrowed() && !values.moves() && values.room() < slot(); }

    // The record was refused: nothing of it stays, in no column.
    void undo(std::uint64_t record) {
        if (seen_ == record) rollback_record();
        seen_ = never;
        if (has_rows()) row_splits.truncate((static_cast<std::size_t>(record) + 1) * sizeof(std::int64_t));
    }

    // Records come from memory that holds the stream from byte `offset` on.
    void begin_block(const std::uint8_t* data, std::uint64_t offset) {
        block_ = data;
        block_offset_ = offset;
    }

    // The key comes up in a record: what an earlier entry of the same record left is dropped, the last one wins.
    DTF_INLINE void open(std::uint64_t record) {
        if (seen_ == record) {
            rollback_record();
        } else {
            seen_ = record;
            record_ = mark();
            if (derived_) derived_from_ = {values.size(), step_splits.size(), shapes.size()};
        }
        if (spec_.list) {
            steps_ = 0;
            step_fault_ = Fault::none;
            there_ = true;
        }
        feature_ = record_;
        found_ = Kind::none;
        values_found_ = 0;
    }

    // The key comes up for the first time in a record, with one value of the right kind in its shortest form, and one is
    // all that it should have. False where it is otherwise, and nothing is done then.
    DTF_INLINE bool take_one(std::uint64_t record, Cursor feature) {
        Cursor value(feature.here(), 0);
        if (!single_ || seen_ == record || !feature.only_value(list_tag(spec_.kind), value)) return false;
        const Mark before{values.size(), value_splits.size()};
        if (!store_one(feature, value)) return false;
        record_ = before;
        seen_ = record;
        found_ = spec_.kind;
        values_found_ = 1;
        return true;
    }

    // The next step of a feature list begins.
    void open_step() {
        feature_ = mark();
        found_ = Kind::none;
        values_found_ = 0;
    }

    // A step of a feature list is over. An entry that another one overrides may hold anything, so that what is wrong
    // is kept until the record is over.
    void close_step() {
        Problem problem;
        if (step_fault_ == Fault::none && !step_fits(problem)) {
            step_fault_ = problem.fault;
            step_found_ = problem.found;
            bad_step_ = steps_;
        }
        ++steps_;
        if (has_steps()) {
            const auto before = last(step_splits);
            step_splits.push(before + static_cast<std::int64_t>(values_found_));
        }
    }

    // A list of some kind within the feature: another kind than before drops that one's values, the same one adds.
    // Answers whether the values are wanted.
    bool list(Kind kind) {
        if (kind != found_) {
            rollback(feature_);
            values_found_ = 0;
            found_ = kind;
        }
        return kind == spec_.kind;
    }

    bool add_int64(std::int64_t value) {
        return wanted(1) == 0 ? counted(1) : store(value);
    }

    bool add_float(const std::uint8_t* bits) {
        if (spec_.layout == Layout::located) return locate(bits, sizeof(float), 1);
        return wanted(1) == 0 ? counted(1) : store(load<std::uint32_t>(bits));
    }

    bool add_packed_int64(Cursor packed) {
        Buffer& into = target();
        std::size_t most = wanted(packed.left());  // a value takes at least one byte
        std::size_t written = 0, more = 0;
        if (into.moves() && most > into.room() / sizeof(std::int64_t)) {
            std::size_t there = 0;  // what is offered is left only where it is too small
            if (!Cursor(packed).count_varints(there)) return false;
            most = there < most ? there : most;
        }
        if (most > 0) {
            if (!into.reserve(most * sizeof(std::int64_t))) return false;
            auto* out = reinterpret_cast<std::int64_t*>(into.data() + into.size());
            if (!packed.varints(out, most, written)) return false;
            into.grow(written * sizeof(std::int64_t));
        }
        return (packed.empty() || packed.count_varints(more)) && counted(written + more);
    }

    bool add_packed_float(Cursor packed) {
        if (packed.left() % sizeof(float) != 0) return false;
        const std::size_t count = packed.left() / sizeof(float);
        if (spec_.layout == Layout::located) return locate(packed.here(), packed.left(), count);
        const std::size_t size = wanted(count) * sizeof(float);
        return target().append(packed.take(size), size) && counted(count);
    }

    bool add_bytes(Cursor value) {
        const std::size_t size = value.left();
        if (spec_.layout == Layout::tensor) {
            encoded_ = value;
            return counted(1);
        }
        if (spec_.layout == Layout::located) {
            bytes_found_ = size;
            return locate(value.here(), size, 1);
        }
        if (spec_.layout == Layout::raw) {
            bytes_found_ = size;
            if (values_found_ == 0 && size == spec_.count) {
                std::uint8_t* place = values.grow(size);
                if (place == nullptr) return false;
                copy(place, value.take(size), size);
            }
            return counted(1);
        }
        if (spec_.layout == Layout::fixed && values_found_ >= spec_.count) return counted(1);
        return append(value.take(size), size) && counted(1);
    }

    // The record is over: is what it said of this feature what the column takes?
    bool close(std::uint64_t record, Problem& problem) {
        if (plain_ && seen_ == record && found_ == spec_.kind && values_found_ == spec_.count) return true;
        if (seen_ != record) {
            open(record);
            there_ = false;
        }
        if (spec_.layout == Layout::skipped) return true;
        if (spec_.list) return close_list(problem);
        if (found_ != spec_.kind && found_ != Kind::none) {
            return fail(problem, Fault::kind, static_cast<std::uint64_t>(found_));
        }
        if (spec_.layout == Layout::ragged) {
            if (values_found_ % spec_.count != 0) return fail(problem, Fault::count, values_found_);
            return check_text(problem) && end_row(values_found_) && finish(problem);
        }
        if (values_found_ == 0 && (!spec_.fallback.empty() || (spec_.optional && spec_.count == 0))) {
            return fall_back(problem);
        }
        if (found_ == Kind::none) return spec_.layout == Layout::unset || fail(problem, Fault::missing, 0);
        return close_one(problem);
    }

    Buffer values;        // as they are stored: numbers of the column's type, or bytes; located: int64; none if counted
    Buffer value_splits;  // int64: where each bytes value ends
    Buffer step_splits;   // int64: where each step's values end, in values
    Buffer row_splits;    // int64: where each record's values end, in values, or its steps
    Buffer shapes;        // int64: the sizes of each row

private:
    Mark mark() { return {target().size(), value_splits.size()}; }

    void rollback(const Mark& to) {
        target().truncate(to.target);
        value_splits.truncate(to.value_splits);
    }

    void rollback_record() {
        rollback(record_);
        if (!derived_) return;
        values.truncate(derived_from_.values);
        step_splits.truncate(derived_from_.step_splits);
        shapes.truncate(derived_from_.shapes);
    }

    // Where numbers are written as they are read: the values themselves, or what is cast when the record is over.
    Buffer& target() { return casts_ ? wide_ : values; }

    std::size_t item() const {
        if (spec_.cast != Cast::none) return item_size(spec_.cast);
        return spec_.kind == Kind::int64 ? 8 : 4;
    }

    static std::int64_t last(const Buffer& splits) {
        return splits.at<std::int64_t>(splits.size() / sizeof(std::int64_t) - 1);
    }

    bool end_row(std::uint64_t more) {
        return row_splits.push(last(row_splits) + static_cast<std::int64_t>(more));
    }

    bool append(const std::uint8_t* data, std::size_t size) {
        return values.append(data, size) && value_splits.push(static_cast<std::int64_t>(values.size()));
    }

    // The one value, or the fixed number of them, that a record has.
    bool close_one(Problem& problem) {
        if (spec_.layout == Layout::tensor) {
            if (values_found_ != 1) return fail(problem, Fault::count, values_found_);
            return close_tensor(problem);
        }
        if (spec_.layout == Layout::raw) {
            if (values_found_ != 1) return fail(problem, Fault::count, values_found_);
            if (bytes_found_ != spec_.count) return fail(problem, Fault::size, bytes_found_);
            return check_boolean(values.data() + record_.target, values.size() - record_.target, problem);
        }
        if (spec_.layout == Layout::located) return close_located(problem);
        if (spec_.layout == Layout::fixed && values_found_ != spec_.count) {
            return fail(problem, Fault::count, values_found_);
        }
        return check_text(problem) && finish(problem);
    }

    bool close_located(Problem& problem) {
        const bool bytes = spec_.kind == Kind::bytes;
        if (values_found_ != (bytes ? 1 : spec_.count)) return fail(problem, Fault::count, values_found_);
        if (bytes && bytes_found_ != spec_.count) return fail(problem, Fault::size, bytes_found_);
        if (scattered_) return fail(problem, Fault::scattered, 0);
        if (!check_boolean(run_, spec_.count, problem)) return false;
        const auto within = static_cast<std::uint64_t>(run_ - block_);
        return values.push(static_cast<std::int64_t>(block_offset_ + within)) || fail(problem, Fault::full, 0);
    }

    bool close_tensor(Problem& problem) {
        TensorProblem found;
        const std::size_t before = values.size(), strings = value_splits.size();
        Buffer* splits = stores_bytes() ? &value_splits : nullptr;
        if (!read_tensor(encoded_, spec_.tensor, values, splits, has_shapes() ? &shapes : nullptr, found)) {
            problem.text = found.text;
            if (found.fault == TensorFault::full) return fail(problem, Fault::full, 0);
            return fail(problem, Fault::tensor, static_cast<std::uint64_t>(found.dtype));
        }
        if (!has_shapes()) return true;
        return end_row(stores_bytes() ? (value_splits.size() - strings) / sizeof(std::int64_t)
                                      : (values.size() - before) / spec_.tensor.item);
    }

    bool step_fits(Problem& problem) const {
        const bool ragged = spec_.layout == Layout::ragged;
        if (found_ != spec_.kind && found_ != Kind::none) {
            return fail(problem, Fault::kind, static_cast<std::uint64_t>(found_));
        }
        const bool counts = ragged ? values_found_ % spec_.count == 0 : values_found_ == spec_.count;
        return counts || fail(problem, Fault::count, values_found_);
    }

    bool close_list(Problem& problem) {
        if (!there_ && !spec_.optional) return fail(problem, Fault::missing, 0);
        if (step_fault_ != Fault::none) {
            problem.step = static_cast<std::int64_t>(bad_step_);
            return fail(problem, step_fault_, step_found_);
        }
        return check_text(problem) && end_row(steps_) && finish(problem);
    }

    // What a record without values has instead.
    bool fall_back(Problem& problem) {
        for (const std::string& part : spec_.fallback) {
            const auto* data = reinterpret_cast<const std::uint8_t*>(part.data());
            const bool written = stores_bytes() ? append(data, part.size()) : values.append(data, part.size());
            if (!written) return fail(problem, Fault::full, 0);
        }
        return true;
    }

    // Values that were read in their stored type become what the column holds.
    bool finish(Problem& problem) {
        if (!casts_) return true;
        const std::size_t stored = spec_.kind == Kind::int64 ? 8 : 4;
        std::uint64_t refused = 0;
        if (!values.reserve(wide_.size() / stored * item())) return fail(problem, Fault::full, 0);
        if (!cast_values(spec_.cast, wide_, values, refused)) return fail(problem, Fault::cast, refused);
        wide_.truncate(0);
        return true;
    }

    bool check_text(Problem& problem) {
        if (!spec_.text) return true;
        constexpr std::size_t each = sizeof(std::int64_t);
        std::size_t begin = record_.target;
        for (std::size_t i = record_.value_splits / each; i < value_splits.size() / each; ++i) {
            const auto end = static_cast<std::size_t>(value_splits.at<std::int64_t>(i));
            if (!is_utf8(values.data() + begin, end - begin)) return fail(problem, Fault::utf8, 0);
            begin = end;
        }
        return true;
    }

    bool check_boolean(const std::uint8_t* data, std::size_t size, Problem& problem) const {
        if (!spec_.boolean) return true;
        for (std::size_t i = 0; i < size; ++i) {
            if (data[i] > 1) return fail(problem, Fault::boolean, data[i]);
        }
        return true;
    }

    static bool fail(Problem& problem, Fault fault, std::uint64_t found) {
        problem.fault = fault;
        problem.found = found;
        return false;
    }

    // How many of `count` more values have a place.
    std::size_t wanted(std::size_t count) {
        if (!target().keeps()) return 0;
        if (spec_.layout == Layout::ragged) return count;
        if (values_found_ >= spec_.count) return 0;
        const std::size_t left = spec_.count - static_cast<std::size_t>(values_found_);
        return count < left ? count : left;
    }

    // So many values lie there.
    bool locate(const std::uint8_t* values_at, std::size_t size, std::size_t count) {
        if (count == 0) return true;
        if (values_found_ == 0) {
            run_ = values_at;
            scattered_ = false;
        } else if (values_at != run_end_) {
            scattered_ = true;
        }
        run_end_ = values_at + size;
        return counted(count);
    }

    bool counted(std::size_t count) {
        values_found_ += count;
        return true;
    }

    static constexpr std::uint8_t list_tag(Kind kind) {
        return static_cast<std::uint8_t>(static_cast<unsigned>(kind) << 3 | 2u);
    }

    // Writes the one value of a feature; of one that can't be written nothing stays.
    DTF_INLINE bool store_one(Cursor feature, Cursor value) {
        const std::size_t size = value.left();
        std::uint64_t number;
        if (spec_.kind == Kind::floats) {
            return size == sizeof(float) && values.push(load<std::uint32_t>(value.here()));
        }
        if (spec_.kind == Kind::int64) return feature.ends_in_varint(size, number) && values.push(number);
        if (!values.append(value.here(), size)) return false;
        if (value_splits.push(static_cast<std::int64_t>(values.size()))) return true;
        values.truncate(values.size() - size);
        return false;
    }

    template <class T>
    bool store(T value) {
        return target().push(value) && counted(1);
    }

    void copy(std::uint8_t* to, const std::uint8_t* from, std::size_t size) const {
        if (size == 0) return;
        if (spec_.swap == 1) {
            std::memcpy(to, from, size);
            return;
        }
        for (std::size_t item = 0; item < size; item += spec_.swap) {
            for (std::size_t i = 0; i < spec_.swap; ++i) to[item + i] = from[item + spec_.swap - 1 - i];
        }
    }

    Buffer wide_;  // a record's numbers before they are cast
    std::uint64_t bytes_found_ = 0;
    std::uint64_t steps_ = 0;
    std::uint64_t step_found_ = 0;
    std::uint64_t bad_step_ = 0;
    Cursor encoded_{nullptr, 0};  // of the record at hand
    Derived derived_from_;
    const std::uint8_t* block_ = nullptr;  // where the bytes are that are being decoded, and their place in the stream
    std::uint64_t block_offset_ = 0;
    const std::uint8_t* run_ = nullptr;  // located: where the values of this record begin and end
    const std::uint8_t* run_end_ = nullptr;
    bool scattered_ = false;
    Fault step_fault_ = Fault::none;
};

}  // namespace dtf
