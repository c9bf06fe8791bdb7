// Columns of decoded values: one column per key, filled record by record.
//
// Wire layout of the values, as in tensorflow/core/example/feature.proto:
//
//     message BytesList { repeated bytes value = 1; }
//     message FloatList { repeated float value = 1; }   packed or not
//     message Int64List { repeated int64 value = 1; }   packed or not; varints
//     message Feature { oneof kind { BytesList = 1; FloatList = 2; Int64List = 3; } }
//
// Specification: https://protobuf.dev/programming-guides/encoding/ and
// https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "casts.hpp"
#include "tensor.hpp"

namespace dtf {

// Field numbers of the lists in a Feature message.
enum class Kind : int { none = 0, bytes = 1, floats = 2, int64 = 3 };

enum class ValueLayout : int {
    fixed = 0,    // the same number of values in every record or step
    ragged = 1,   // any number of values
    raw = 2,      // one bytes value of a known size, copied to its slot
    skipped = 3,  // a known key whose values are not decoded
    unset = 4,    // a key that must not hold values
    tensor = 5,   // one bytes value that is a TensorProto
};

// What values must be beyond their kind.
enum class Content : int {
    any = 0,
    text = 1,      // bytes values are UTF-8
    booleans = 2,  // raw: every byte is 0 or 1
    mixed = 3,     // floats: a record may list integers instead, which the type of the column holds exactly
};

enum class Fault : int {
    none = 0,
    malformed = 1,    // not a valid protobuf message
    not_example = 2,  // a valid message of another type
    missing = 3,      // a feature that the record lacks
    kind = 4,         // values in the list of another kind
    count = 5,        // another number of values
    size = 6,         // a raw value of another size
    utf8 = 7,         // text that is not valid UTF-8
    unknown_key = 8,  // a feature that the schema lacks
    boolean = 9,      // a raw bool that is neither 0 nor 1
    full = 10,        // the output buffer is full, or the memory limit of the column is reached
    cast = 11,        // a value outside the range of the type that it is cast to
    tensor = 12,      // not a TensorProto, or one of another dtype, shape or size
};

// Tag of a list in a Feature message.
constexpr std::uint8_t list_tag(Kind kind) {
    return static_cast<std::uint8_t>(length_delimited(static_cast<std::uint32_t>(kind)));
}

struct Problem {
    Fault fault = Fault::none;
    int column = -1;          // index of the column, or -1
    std::int64_t step = -1;   // step of a feature list, item of a list of Examples, or number of a text in a list; or -1
    std::uint64_t found = 0;  // a Kind, count, size or value, depending on the fault
    std::string text;         // key of an unknown feature, or description of a tensor
};

struct ColumnSpec {
    std::string key;
    Kind kind = Kind::none;
    ValueLayout layout = ValueLayout::skipped;
    std::size_t count = 1;  // fixed: values per record or step; ragged: the values are a multiple; raw: bytes
    std::size_t swap = 1;   // raw: bytes per item whose order is reversed; 1 for none
    Content content = Content::any;
    bool list = false;      // a feature list of steps, each a Feature, or a key of items; fixed or ragged
    bool optional = false;  // a record may lack the list, or, if a fixed count is 0, the feature
    bool counted = false;   // values are validated and counted but not kept: only splits and shapes remain
    Cast cast = Cast::none;
    // fixed: stored values of a record or item without values; empty if it is refused
    std::vector<std::string> default_value;
    TensorSpec tensor;
};

// Return whether a size differs between tensors.
inline bool is_open(const TensorSpec& spec) {
    return std::find(spec.shape.begin(), spec.shape.end(), -1) != spec.shape.end();
}

// Bytes of a tensor of known sizes; the product is below 2^59.
inline std::size_t nbytes(const TensorSpec& spec) {
    std::size_t size = spec.item;
    for (const std::int64_t length : spec.shape) size *= static_cast<std::size_t>(length);
    return size;
}

class Column {
    // Sizes of the buffers at some point. Truncating to them discards what was read later.
    struct Mark {
        std::size_t target = 0, value_splits = 0;
    };
    // The same for what is derived at the end of a step or record; few columns derive anything.
    struct Derived {
        std::size_t values = 0, step_splits = 0, shapes = 0;
    };

    // State of the key in this record.
    enum class Entry : std::uint8_t {
        absent,
        scalar,  // the one value that take_one stored, so that marks are those of an earlier record
        read,
    };

    // Check at the end of a record. The forms from `tensor` on append to splits or shapes then.
    enum class Form : std::uint8_t {
        skipped,
        unset,
        plain,  // a fixed number of values, which need no further work
        fixed,
        ragged,
        raw,
        tensor,
        steps,  // a feature list, or a key of items
    };

    // Conversion of the values at the end of a record, step or item.
    enum class Finish : std::uint8_t {
        none,
        text,      // they must be UTF-8
        booleans,  // raw bytes must be 0 or 1
        cast,      // numbers are cast from `wide_`
        mixed,     // the same of floats, or of integers that the type holds exactly
    };

    // Form of a step that is read without a look at each of its fields.
    enum class QuickStep : std::uint8_t { none, floats, integers };

    static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

    // Members that every record touches come first, to share a cache line.
    std::uint64_t seen_ = never;
    std::uint64_t item_ = never;  // last item of a list of Examples that has the key
    std::uint64_t values_found_ = 0;
    Mark record_;
    Mark feature_;
    Kind found_ = Kind::none;
    Entry entry_ = Entry::absent;
    // Chosen once, by the spec.
    Form form_ = Form::skipped;
    Finish finish_ = Finish::none;
    std::uint8_t scalar_tag_ = 0;  // of the list with the one value that take_one stores; else 0
    QuickStep quick_step_ = QuickStep::none;
    std::string float_head_;  // begin of the steps of QuickStep::floats
    ColumnSpec spec_;

public:
    explicit Column(ColumnSpec spec) : spec_(std::move(spec)) {
        finish_ = finish_of(spec_);
        form_ = form_of(spec_, finish_);
        if (has_scalar()) scalar_tag_ = list_tag(spec_.kind);
        quick_step_ = quick_step();
        if (quick_step_ == QuickStep::floats) float_head_ = float_head();
        if (spec_.counted) values = Buffer::counter();
        if (has_rows()) row_splits.push(std::int64_t{0});
        if (stores_bytes()) value_splits.push(std::int64_t{0});
        if (has_steps()) step_splits.push(std::int64_t{0});
    }

    const ColumnSpec& spec() const { return spec_; }

    void preallocate(double factor) {
        for (Buffer* buffer : {&values, &value_splits, &step_splits, &row_splits, &shapes}) buffer->preallocate(factor);
    }

    bool stores_bytes() const {
        if (spec_.layout == ValueLayout::tensor) return spec_.tensor.item == 0;
        return spec_.kind == Kind::bytes && (spec_.layout == ValueLayout::fixed || spec_.layout == ValueLayout::ragged);
    }
    // Return whether rows are delimited by splits of the values or steps.
    bool has_rows() const {
        return spec_.layout == ValueLayout::ragged || (spec_.list && spec_.layout == ValueLayout::fixed) || has_shapes();
    }
    bool has_steps() const { return spec_.list && spec_.layout == ValueLayout::ragged; }
    // Return whether every row is an array with its own shape.
    bool has_shapes() const { return spec_.layout == ValueLayout::tensor && is_open(spec_.tensor); }

    // Bytes of one record in a buffer of fixed-size rows; `count` is below 2^59.
    std::size_t slot() const {
        if (spec_.layout == ValueLayout::raw) return spec_.count;
        if (spec_.layout == ValueLayout::tensor) return nbytes(spec_.tensor);
        return spec_.count * item();
    }

    // Refuse tensors and default values that would grow the memory of the values beyond `most` bytes. A record of a few
    // bytes can expand to gigabytes with them.
    void set_memory_limit(std::size_t most) { most_ = most; }

    bool full() const { return values.borrowed() && !values.moves() && values.room() < slot(); }

    // Discard all values of a refused record.
    void undo(std::uint64_t record) {
        if (seen_ == record) rollback_record();
        seen_ = never;
        if (has_rows()) row_splits.truncate((static_cast<std::size_t>(record) + 1) * sizeof(std::int64_t));
    }

    // Start an entry of the key. It discards an earlier entry of the same record: the last one wins.
    DTF_INLINE void open(std::uint64_t record) {
        if (seen_ == record) rollback_record();
        seen_ = record;
        entry_ = Entry::read;
        record_ = mark();
        if (derives()) derived_from_ = {values.size(), step_splits.size(), shapes.size()};
        if (form_ == Form::steps) {
            steps_ = 0;
            step_fault_ = Fault::none;
        }
        feature_ = record_;
        found_ = Kind::none;
        values_found_ = 0;
    }

    // Tag of the list of a Feature with one value that take_one stores; 0 if there is none.
    std::uint8_t tag_of_one() const { return scalar_tag_; }

    // Enter the one value of a Feature in its shortest form, if take_one stores it.
    DTF_INLINE bool is_one(Cursor feature, Cursor& value) const {
        return scalar_tag_ != 0 && feature.only_value(scalar_tag_, value);
    }

    // Store the common case: the first entry of the key in a record, with the single expected value, which ends
    // `feature`. Otherwise return false and change nothing.
    DTF_INLINE bool take_one(Kind kind, std::uint64_t record, Cursor feature, Cursor value) {
        if (seen_ == record || !store_one(kind, feature, value)) return false;
        seen_ = record;
        entry_ = Entry::scalar;
        return true;
    }

    // The same for an item of a list of Examples. `open` has started the record.
    DTF_INLINE bool take_one_of_item(Kind kind, std::uint64_t item, Cursor feature, Cursor value) {
        const Mark before{values.size(), value_splits.size()};
        if (item_ == item || !store_one(kind, feature, value)) return false;
        feature_ = before;
        item_ = item;
        found_ = spec_.kind;
        values_found_ = 1;
        return true;
    }

    // Start an entry of the key in an item. It discards an earlier entry of the same item: the last one wins.
    void open_item(std::uint64_t item) {
        if (item_ == item) rollback(feature_);
        item_ = item;
        open_step();
    }

    // End an item, which may lack the key. Its fault is kept until the record ends, as that of a step.
    void close_item(std::uint64_t item) {
        if (item_ != item) open_step();
        Problem problem;
        end_step(step_fault_ != Fault::none || complete_item(problem), problem);
        if (finish_ == Finish::mixed) wide_.truncate(0);
    }

    // Store the next step of a feature list if it has a common form: the expected number of packed floats, or a few
    // packed integers, in one list. Otherwise return false and change nothing.
    DTF_INLINE bool take_step(Cursor& list) {
        if (quick_step_ == QuickStep::floats) return take_floats(list);
        return quick_step_ == QuickStep::integers && take_integers(list);
    }

    // Start the next step of a feature list.
    void open_step() {
        feature_ = mark();
        found_ = Kind::none;
        values_found_ = 0;
    }

    // End a step of a feature list. A later entry may override this one, so its fault is kept until the record ends.
    DTF_INLINE void close_step() {
        if (finish_ == Finish::mixed) return close_mixed_step();
        Problem problem;
        end_step(step_fault_ != Fault::none || step_fits(problem), problem);
    }

    // Start a list within the feature. A list of another kind than before discards its values; one of the same kind
    // adds to them. Return whether the values are wanted.
    bool list(Kind kind) {
        if (kind != found_) {
            rollback(feature_);
            values_found_ = 0;
            found_ = kind;
        }
        return kind == spec_.kind || (finish_ == Finish::mixed && kind == Kind::int64);
    }

    // Count values of the last list, which is not wanted.
    void pass_over(std::uint64_t count) { values_found_ += count; }
    std::uint64_t values_found() const { return values_found_; }

    bool add_int64(std::int64_t value) {
        return wanted(1) == 0 ? counted(1) : store(value);
    }

    bool add_float(const std::uint8_t* bits) {
        return wanted(1) == 0 ? counted(1) : store(load<std::uint32_t>(bits));
    }

    bool add_packed_int64(Cursor packed) {
        Buffer& into = target();
        std::size_t most = wanted(packed.left());  // a value takes at least one byte
        std::size_t written = 0, more = 0;
        if (into.moves() && most > into.room() / sizeof(std::int64_t)) {
            std::size_t there = 0;  // offered memory is left only if it is too small
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
        const std::size_t size = wanted(count) * sizeof(float);
        return target().append(packed.take(size), size) && counted(count);
    }

    bool add_bytes(Cursor value) {
        const std::size_t size = value.left();
        if (spec_.layout == ValueLayout::tensor) {
            encoded_ = value;
            return counted(1);
        }
        if (spec_.layout == ValueLayout::raw) {
            bytes_found_ = size;
            if (values_found_ == 0 && size == spec_.count) {
                std::uint8_t* place = values.grow(size);
                if (place == nullptr) return false;
                copy(place, value.take(size), size);
            }
            return counted(1);
        }
        if (spec_.layout == ValueLayout::fixed && values_found_ >= spec_.count) return counted(1);
        return append(value.take(size), size) && counted(1);
    }

    // End the record: return whether its values are what the column expects.
    bool close(std::uint64_t record, Problem& problem) {
        if (seen_ == record) {
            if (entry_ == Entry::scalar) return true;
            if (form_ == Form::plain && found_ == spec_.kind && values_found_ == spec_.count) return true;
        } else {
            open(record);
            entry_ = Entry::absent;
        }
        if (form_ == Form::skipped) return true;
        if (form_ == Form::steps) return close_list(problem);
        if (has_other_kind()) return fail(problem, Fault::kind, static_cast<std::uint64_t>(found_));
        if (form_ == Form::unset) return true;
        if (form_ == Form::ragged) {
            if (values_found_ % spec_.count != 0) return fail(problem, Fault::count, values_found_);
            return end_row(values_found_) && finish(problem);
        }
        if (values_found_ == 0 && takes_default()) return store_default(problem);
        if (found_ == Kind::none) return fail(problem, Fault::missing, 0);
        return close_one(problem);
    }

    Buffer values;        // as stored: numbers of the type of the column, or bytes; empty if counted
    Buffer value_splits;  // int64: splits of the bytes values
    Buffer step_splits;   // int64: splits of the values by step
    Buffer row_splits;    // int64: splits of the values, or the steps, by record
    Buffer shapes;        // int64: shape of each row

private:
    static Finish finish_of(const ColumnSpec& spec) {
        switch (spec.content) {
            case Content::text: return Finish::text;
            case Content::booleans: return Finish::booleans;
            case Content::mixed: return Finish::mixed;
            default: return spec.cast == Cast::none ? Finish::none : Finish::cast;
        }
    }

    static Form form_of(const ColumnSpec& spec, Finish finish) {
        if (spec.layout == ValueLayout::skipped) return Form::skipped;
        if (spec.list) return Form::steps;
        switch (spec.layout) {
            case ValueLayout::fixed: return finish == Finish::none ? Form::plain : Form::fixed;
            case ValueLayout::ragged: return Form::ragged;
            case ValueLayout::raw: return Form::raw;
            case ValueLayout::tensor: return Form::tensor;
            default: return Form::unset;
        }
    }

    // Return whether a record, or an item of a list of Examples, has one value that take_one stores.
    bool has_scalar() const {
        if (spec_.layout != ValueLayout::fixed || spec_.count != 1) return false;
        return (stores_bytes() || !spec_.counted) && (spec_.list ? !casts() : spec_.content != Content::text);
    }

    bool casts() const { return finish_ >= Finish::cast; }

    // Return whether something is computed at the end of a step or record.
    bool derives() const { return form_ >= Form::tensor || casts(); }

    // Return whether a record or item may lack values.
    bool takes_default() const { return !spec_.default_value.empty() || (spec_.optional && spec_.count == 0); }

    // Return whether the values are in a list of another kind. An empty one is as good as one of this kind.
    DTF_INLINE bool has_other_kind() const {
        return found_ != spec_.kind && found_ != Kind::none && refuses_kind();
    }

    DTF_APART bool refuses_kind() const {
        if (finish_ == Finish::mixed && found_ == Kind::int64) return false;
        return values_found_ > 0 || spec_.layout == ValueLayout::unset;
    }

    Mark mark() { return {target().size(), value_splits.size()}; }

    void rollback(const Mark& to) {
        target().truncate(to.target);
        value_splits.truncate(to.value_splits);
    }

    void rollback_record() {
        if (entry_ == Entry::scalar) {
            if (stores_bytes()) {
                value_splits.truncate(value_splits.size() - sizeof(std::int64_t));
                values.truncate(static_cast<std::size_t>(last(value_splits)));
            } else {
                values.truncate(values.size() - item());
            }
            return;
        }
        rollback(record_);
        if (!derives()) return;
        values.truncate(derived_from_.values);
        step_splits.truncate(derived_from_.step_splits);
        shapes.truncate(derived_from_.shapes);
    }

    // Destination of numbers as they are read: the values, or a buffer to be cast from at the end of the record.
    Buffer& target() { return casts() ? wide_ : values; }

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

    // Check the one value, or the fixed number of values, of a record.
    bool close_one(Problem& problem) {
        const bool is_value = form_ == Form::raw || form_ == Form::tensor;
        if (values_found_ != (is_value ? 1 : spec_.count)) return fail(problem, Fault::count, values_found_);
        if (form_ == Form::tensor) return close_tensor(problem);
        if (form_ == Form::raw && bytes_found_ != spec_.count) return fail(problem, Fault::size, bytes_found_);
        return finish(problem);
    }

    bool close_tensor(Problem& problem) {
        TensorProblem found;
        const std::size_t before = values.size(), strings = value_splits.size();
        Buffer* splits = stores_bytes() ? &value_splits : nullptr;
        if (!read_tensor(encoded_, spec_.tensor, values, splits, has_shapes() ? &shapes : nullptr, found,
                         most_)) {
            problem.text = found.text;
            if (found.fault == TensorFault::full) return fail(problem, Fault::full, 0);
            return fail(problem, Fault::tensor, static_cast<std::uint64_t>(found.dtype));
        }
        if (!has_shapes()) return true;
        return end_row(stores_bytes() ? (value_splits.size() - strings) / sizeof(std::int64_t)
                                      : (values.size() - before) / spec_.tensor.item);
    }

    QuickStep quick_step() const {
        if (!spec_.list || casts() || spec_.counted) return QuickStep::none;
        if (spec_.layout == ValueLayout::fixed && spec_.kind == Kind::floats) return QuickStep::floats;
        return has_steps() && spec_.kind == Kind::int64 && spec_.count == 1 ? QuickStep::integers : QuickStep::none;
    }

    // Bytes before the packed floats of a step: the tag and size of the Feature, of its FloatList, and of its values.
    std::string float_head() const {
        std::string head;
        for (const std::uint8_t tag : {one_tag, list_tag(Kind::floats), one_tag}) {
            std::string field(1, static_cast<char>(tag));
            std::size_t size = spec_.count * sizeof(float) + head.size();
            for (; size >= 0x80; size >>= 7) field += static_cast<char>((size & 0x7f) | 0x80);
            head = field + static_cast<char>(size) + head;
        }
        return head;
    }

    DTF_INLINE bool take_floats(Cursor& list) {
        Cursor rest = list;
        if (!rest.pass(float_head_)) return false;
        const std::size_t size = spec_.count * sizeof(float);
        const std::uint8_t* floats = rest.take(size);
        if (floats == nullptr || !values.append(floats, size)) return false;
        ++steps_;
        list = rest;
        return true;
    }

    DTF_INLINE bool take_integers(Cursor& list) {
        Cursor rest = list, step(list.here(), 0), value(list.here(), 0);
        std::uint32_t tag;
        if (!rest.tag(tag) || tag != one_tag || !rest.delimited(step) || !step.only_value(list_tag(Kind::int64), value)) {
            return false;
        }
        const std::size_t most = value.left();
        if (most >= Cursor::few || values.borrowed() || !values.reserve(most * sizeof(std::int64_t))) return false;
        auto* out = reinterpret_cast<std::int64_t*>(values.data() + values.size());
        std::size_t count = 0;
        for (std::uint64_t number; !value.empty(); out[count++] = static_cast<std::int64_t>(number)) {
            if (!value.varint_at_once(number)) return false;
        }
        values.grow(count * sizeof(std::int64_t));
        step_splits.push(last(step_splits) + static_cast<std::int64_t>(count));
        ++steps_;
        list = rest;
        return true;
    }

    // Steps may differ in their kinds, so that each is cast alone, and one that does not fit leaves nothing.
    DTF_APART void close_mixed_step() {
        Problem problem;
        end_step(step_fault_ != Fault::none || (step_fits(problem) && cast(problem)), problem);
        wide_.truncate(0);
    }

    void end_step(bool fits, const Problem& problem) {
        if (!fits) {
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

    // Store the default value of an item without values, and cast its values; return whether they are what the column
    // expects.
    bool complete_item(Problem& problem) {
        if (has_other_kind()) return fail(problem, Fault::kind, static_cast<std::uint64_t>(found_));
        if (spec_.layout == ValueLayout::unset) return true;
        if (spec_.layout == ValueLayout::fixed && values_found_ == 0) {
            if (takes_default()) return store_default(problem);
            if (found_ == Kind::none) return fail(problem, Fault::missing, 0);
        }
        return step_fits(problem) && cast(problem);
    }

    bool step_fits(Problem& problem) const {
        const bool ragged = spec_.layout == ValueLayout::ragged;
        if (has_other_kind()) return fail(problem, Fault::kind, static_cast<std::uint64_t>(found_));
        if (spec_.layout == ValueLayout::unset) return true;
        const bool counts = ragged ? values_found_ % spec_.count == 0 : values_found_ == spec_.count;
        return counts || fail(problem, Fault::count, values_found_);
    }

    bool close_list(Problem& problem) {
        const bool unset = spec_.layout == ValueLayout::unset;
        if (entry_ == Entry::absent && !spec_.optional && !unset) return fail(problem, Fault::missing, 0);
        if (step_fault_ != Fault::none) {
            problem.step = static_cast<std::int64_t>(bad_step_);
            return fail(problem, step_fault_, step_found_);
        }
        if (unset) return true;
        return end_row(steps_) && finish(problem);
    }

    // Store the default value of a record without values.
    bool store_default(Problem& problem) {
        for (const std::string& part : spec_.default_value) {
            if (values.over(most_, part.size())) return fail(problem, Fault::full, 0);
            const auto* data = reinterpret_cast<const std::uint8_t*>(part.data());
            const bool written = stores_bytes() ? append(data, part.size()) : values.append(data, part.size());
            if (!written) return fail(problem, Fault::full, 0);
        }
        return true;
    }

    // Check or cast the values of a record.
    DTF_INLINE bool finish(Problem& problem) { return finish_ == Finish::none || finish_values(problem); }

    DTF_APART bool finish_values(Problem& problem) {
        switch (finish_) {
            case Finish::text: return check_text(problem);
            case Finish::booleans: return check_booleans(problem);
            default: return cast(problem);
        }
    }

    // Convert values of the stored type to the type of the column.
    bool cast(Problem& problem) {
        if (!casts()) return true;
        const std::size_t stored = spec_.kind == Kind::int64 || found_ == Kind::int64 ? 8 : 4;
        std::uint64_t refused = 0;
        if (!values.reserve(wide_.size() / stored * item())) return fail(problem, Fault::full, 0);
        if (!cast_found(refused)) return fail(problem, Fault::cast, refused);
        wide_.truncate(0);
        return true;
    }

    // Cast the values of a record, or of a step or item if they are mixed.
    bool cast_found(std::uint64_t& refused) {
        if (finish_ != Finish::mixed) return cast_values(spec_.cast, wide_, values, refused);
        if (found_ == Kind::int64) return cast_to_exact_floats(spec_.cast, wide_, values, refused);
        if (spec_.cast == Cast::none) return values.append(wide_.data(), wide_.size());
        return cast_values(spec_.cast, wide_, values, refused);
    }

    DTF_APART bool check_text(Problem& problem) {
        constexpr std::size_t each = sizeof(std::int64_t);
        std::size_t begin = record_.target;
        for (std::size_t i = record_.value_splits / each; i < value_splits.size() / each; ++i) {
            const auto end = static_cast<std::size_t>(value_splits.at<std::int64_t>(i));
            if (!is_utf8(values.data() + begin, end - begin)) {
                if (has_rows() || spec_.count > 1) problem.step = static_cast<std::int64_t>(i - record_.value_splits / each);
                return fail(problem, Fault::utf8, 0);
            }
            begin = end;
        }
        return true;
    }

    DTF_APART bool check_booleans(Problem& problem) {
        for (std::size_t i = record_.target; i < values.size(); ++i) {
            if (values.data()[i] > 1) return fail(problem, Fault::boolean, values.data()[i]);
        }
        return true;
    }

    static bool fail(Problem& problem, Fault fault, std::uint64_t found) {
        problem.fault = fault;
        problem.found = found;
        return false;
    }

    // Number of values, of `count` more, that are stored.
    std::size_t wanted(std::size_t count) {
        if (!target().keeps()) return 0;
        if (spec_.layout == ValueLayout::ragged) return count;
        if (values_found_ >= spec_.count) return 0;
        const std::size_t left = spec_.count - static_cast<std::size_t>(values_found_);
        return count < left ? count : left;
    }

    // Count values that were read.
    bool counted(std::size_t count) {
        values_found_ += count;
        return true;
    }

    // Tag of field 1 with a size: a step of a feature list, and the values of a list.
    static constexpr auto one_tag = static_cast<std::uint8_t>(length_delimited(1));

    // Store the one value of a feature, which ends it; on failure nothing of it remains.
    DTF_INLINE bool store_one(Kind kind, Cursor feature, Cursor value) {
        const std::size_t size = value.left();
        if (kind == Kind::floats) {
            if (size != sizeof(float)) return false;
            const auto bits = load<std::uint32_t>(value.here());
            return casts() ? cast_one(bits) : values.push(bits);
        }
        if (kind == Kind::int64) {
            std::uint64_t number;
            if (!feature.ends_in_varint(size, number)) return false;
            return casts() ? cast_one(number) : values.push(number);
        }
        if (!values.append(value.here(), size)) return false;
        if (value_splits.push(static_cast<std::int64_t>(values.size()))) return true;
        values.truncate(values.size() - size);
        return false;
    }

    template <class T>
    DTF_APART bool cast_one(T number) {
        const std::size_t before = values.size();
        std::uint64_t refused;
        found_ = spec_.kind;
        const bool fits = wide_.push(number) && cast_found(refused);
        wide_.truncate(0);
        if (!fits) values.truncate(before);
        return fits;
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

    Buffer wide_;  // numbers of a record before they are cast
    std::size_t most_ = std::numeric_limits<std::size_t>::max();
    std::uint64_t bytes_found_ = 0;
    std::uint64_t steps_ = 0;
    std::uint64_t step_found_ = 0;
    std::uint64_t bad_step_ = 0;
    Cursor encoded_{nullptr, 0};  // of the current record
    Derived derived_from_;
    Fault step_fault_ = Fault::none;
};

}  // namespace dtf
