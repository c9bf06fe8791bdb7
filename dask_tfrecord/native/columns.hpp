// Where decoded values go: one column per feature, filled record by record.
#pragma once

#include <string>
#include <utility>

#include "buffer.hpp"

namespace dtf {

// The field numbers of the kinds in a Feature message.
enum class Kind : int { none = 0, bytes = 1, floats = 2, int64 = 3 };

enum class Layout : int {
    fixed = 0,   // the same number of values in every record
    ragged = 1,  // any number of values, with row_splits
    raw = 2,     // one bytes value of a known size, copied into its slot
    skipped = 3, // a key that is known and not wanted
    unset = 4,   // a key that must not hold a kind
};

enum class Fault : int {
    none = 0,
    malformed = 1,    // no legal protobuf message
    not_example = 2,  // a legal message of another type
    missing = 3,      // a fixed feature that the record lacks
    kind = 4,         // a list of another kind
    count = 5,        // another number of values
    size = 6,         // a raw value of another size
    utf8 = 7,         // text that is no UTF-8
    unknown_key = 8,  // a feature that the schema has not
    boolean = 9,      // a raw bool that is neither 0 nor 1
    full = 10,        // the memory lent for the column has no place for another record
};

struct Problem {
    Fault fault = Fault::none;
    int column = -1;          // index of the column, if it is one column's
    std::uint64_t found = 0;  // a Kind, a count or a size, as the fault has it
    std::string key;          // of an unknown feature
};

struct ColumnSpec {
    std::string key;
    Kind kind = Kind::none;
    Layout layout = Layout::skipped;
    std::size_t count = 1;  // fixed: values per record; ragged: a record's number of values is a multiple; raw: bytes
    std::size_t swap = 1;   // raw: bytes per item whose order is turned round, 1 for none
    bool text = false;      // bytes values are UTF-8
    bool boolean = false;   // raw: every byte is 0 or 1
};

class Column {
public:
    explicit Column(ColumnSpec spec) : spec_(std::move(spec)) {
        if (spec_.layout == Layout::ragged) row_splits.push(std::int64_t{0});
        if (stores_bytes()) value_splits.push(std::int64_t{0});
    }

    const ColumnSpec& spec() const { return spec_; }

    bool is_named(const std::uint8_t* text, std::size_t size) const {
        return spec_.key.size() == size && same(reinterpret_cast<const std::uint8_t*>(spec_.key.data()), text, size);
    }

    void expect(double times) {
        values.expect(times);
        value_splits.expect(times);
        row_splits.expect(times);
    }

    bool stores_bytes() const {
        return spec_.kind == Kind::bytes && (spec_.layout == Layout::fixed || spec_.layout == Layout::ragged);
    }

    // Bytes of a record's values in memory of a fixed size; `count` is below 2^60.
    std::size_t slot() const {
        const std::size_t each = spec_.layout == Layout::raw ? 1 : spec_.kind == Kind::int64 ? 8 : 4;
        return spec_.count * each;
    }

    bool full() const { return values.borrowed() && values.room() < slot(); }

    // The record was refused: nothing of it stays, in no column.
    void undo(std::uint64_t record) {
        if (seen_ == record) rollback();
        seen_ = never;
        if (spec_.layout == Layout::ragged) {
            row_splits.truncate((static_cast<std::size_t>(record) + 1) * sizeof(std::int64_t));
        }
    }

    // The key comes up in a record: what an earlier entry of the same record left is dropped, the last one wins.
    void open(std::uint64_t record) {
        if (seen_ == record) {
            rollback();
        } else {
            seen_ = record;
            begin_values_ = values.size();
            begin_splits_ = value_splits.size();
        }
        found_ = Kind::none;
        values_found_ = 0;
    }

    // A list of some kind within the feature: another kind than before drops that one's values, the same one adds.
    // Answers whether the values are wanted.
    bool list(Kind kind) {
        if (kind != found_) {
            rollback();
            values_found_ = 0;
            found_ = kind;
        }
        return kind == spec_.kind;
    }

    bool add_int64(std::int64_t value) {
        return spec_.layout == Layout::fixed && values_found_ >= spec_.count ? counted(1) : store(value);
    }

    bool add_float(std::uint32_t bits) {
        return spec_.layout == Layout::fixed && values_found_ >= spec_.count ? counted(1) : store(bits);
    }

    bool add_packed_int64(Cursor packed) {
        const std::size_t most = wanted(packed.left());  // a value takes at least one byte
        std::size_t written = 0;
        if (most > 0) {
            if (!values.reserve(most * sizeof(std::int64_t))) return false;
            auto* out = reinterpret_cast<std::int64_t*>(values.data() + values.size());
            if (!packed.varints(out, most, written)) return false;
            values.grow(written * sizeof(std::int64_t));
        }
        values_found_ += written;
        for (std::uint64_t ignored; !packed.empty(); ++values_found_) {
            if (!packed.varint(ignored)) return false;
        }
        return true;
    }

    bool add_packed_float(Cursor packed) {
        if (packed.left() % sizeof(float) != 0) return false;
        const std::size_t count = packed.left() / sizeof(float);
        const std::size_t size = wanted(count) * sizeof(float);
        if (size > 0) {
            std::uint8_t* place = values.grow(size);
            if (place == nullptr) return false;
            std::memcpy(place, packed.take(size), size);
        }
        return counted(count);
    }

    bool add_bytes(Cursor value) {
        const std::size_t size = value.left();
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
        std::uint8_t* place = values.grow(size);
        if (place == nullptr) return false;
        if (size > 0) std::memcpy(place, value.take(size), size);
        return value_splits.push(static_cast<std::int64_t>(values.size())) && counted(1);
    }

    // The record is over: is what it said of this feature what the column takes?
    bool close(std::uint64_t record, Problem& problem) {
        if (seen_ != record) {
            begin_values_ = values.size();
            begin_splits_ = value_splits.size();
            found_ = Kind::none;
            values_found_ = 0;
        }
        if (spec_.layout == Layout::skipped) return true;
        if (found_ != spec_.kind && found_ != Kind::none) {
            return fail(problem, Fault::kind, static_cast<std::uint64_t>(found_));
        }
        if (spec_.layout == Layout::ragged) return close_ragged(problem);
        if (found_ == Kind::none) return spec_.layout == Layout::unset || fail(problem, Fault::missing, 0);
        if (spec_.layout == Layout::raw) {
            if (values_found_ != 1) return fail(problem, Fault::count, values_found_);
            if (bytes_found_ != spec_.count) return fail(problem, Fault::size, bytes_found_);
            return check_boolean(problem);
        }
        if (spec_.layout == Layout::fixed && values_found_ != spec_.count) {
            return fail(problem, Fault::count, values_found_);
        }
        return check_text(problem);
    }

    Buffer values;        // int64, float32 or bytes
    Buffer value_splits;  // int64: where each bytes value ends
    Buffer row_splits;    // int64: where each record's values end, in values

private:
    bool close_ragged(Problem& problem) {
        if (values_found_ % spec_.count != 0) return fail(problem, Fault::count, values_found_);
        if (!check_text(problem)) return false;
        const auto before = row_splits.at<std::int64_t>(row_splits.size() / sizeof(std::int64_t) - 1);
        return row_splits.push(before + static_cast<std::int64_t>(values_found_));
    }

    bool check_text(Problem& problem) {
        if (!spec_.text) return true;
        constexpr std::size_t each = sizeof(std::int64_t);
        std::size_t begin = begin_values_;
        for (std::size_t i = begin_splits_ / each; i < value_splits.size() / each; ++i) {
            const auto end = static_cast<std::size_t>(value_splits.at<std::int64_t>(i));
            if (!is_utf8(values.data() + begin, end - begin)) return fail(problem, Fault::utf8, 0);
            begin = end;
        }
        return true;
    }

    bool check_boolean(Problem& problem) {
        if (!spec_.boolean) return true;
        for (std::size_t i = begin_values_; i < values.size(); ++i) {
            if (values.data()[i] > 1) return fail(problem, Fault::boolean, values.data()[i]);
        }
        return true;
    }

    bool fail(Problem& problem, Fault fault, std::uint64_t found) const {
        problem.fault = fault;
        problem.found = found;
        return false;
    }

    void rollback() {
        values.truncate(begin_values_);
        value_splits.truncate(begin_splits_);
    }

    // How many of `count` more values have a place.
    std::size_t wanted(std::size_t count) const {
        if (spec_.layout == Layout::ragged) return count;
        if (values_found_ >= spec_.count) return 0;
        const std::size_t left = spec_.count - static_cast<std::size_t>(values_found_);
        return count < left ? count : left;
    }

    bool counted(std::size_t count) {
        values_found_ += count;
        return true;
    }

    template <class T>
    bool store(T value) {
        return values.push(value) && counted(1);
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

    static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

    ColumnSpec spec_;
    std::uint64_t seen_ = never;
    std::uint64_t values_found_ = 0;
    std::uint64_t bytes_found_ = 0;
    std::size_t begin_values_ = 0;
    std::size_t begin_splits_ = 0;
    Kind found_ = Kind::none;
};

}  // namespace dtf
