// Decoder of tf.train.Example, SequenceExample and ExampleListWithContext messages. Accepts every encoding that protobuf
// accepts.
//
// Wire layout, from tensorflow/core/example/example.proto and feature.proto, and from example_list.proto of TF-Ranking:
//
//     message Example         { Features features = 1; }
//     message SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
//     message Features        { map<string, Feature> feature = 1; }
//     message FeatureLists    { map<string, FeatureList> feature_list = 1; }
//     message FeatureList     { repeated Feature feature = 1; }
//     message Feature         { oneof kind { BytesList = 1; FloatList = 2; Int64List = 3; } }
//     message ExampleListWithContext { repeated Example examples = 1; Example context = 2; }
//
// A map is a repeated message of entries { string key = 1; Value value = 2; }. The last entry of a key wins; within an
// entry, repeated values merge. columns.hpp describes the lists.
//
// Specification: https://protobuf.dev/programming-guides/encoding/ and
// https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/example.proto and
// https://github.com/tensorflow/serving/blob/master/tensorflow_serving/apis/input.proto
#pragma once

#include <iterator>
#include <vector>

#include "columns.hpp"
#include "keys.hpp"
#include "records.hpp"

namespace dtf {

enum class Message : int { example = 0, sequence_example = 1, example_list = 2 };

// The maps of a record. Columns of lists and of items have `ColumnSpec::list`; an item is a step of all of them.
enum class Part {
    features,  // of an Example, or of a context
    lists,     // of a SequenceExample
    items,     // features of one Example of an ExampleListWithContext
};

// Decodes records to columns.
class Decoder : public RecordDecoder<Decoder> {
public:
    Decoder(std::vector<ColumnSpec> specs, bool check_crc, bool closed, Message message = Message::example)
        : RecordDecoder(check_crc), closed_(closed), message_(message), depth_(message == Message::example_list),
          columns_(std::make_move_iterator(specs.begin()), std::make_move_iterator(specs.end())) {
        for (std::size_t i = 0; i < columns_.size(); ++i) {
            const ColumnSpec& spec = columns_[i].spec();
            const bool skipped = spec.layout == ValueLayout::skipped;
            (spec.list ? lists_ : features_).add(spec.key, skipped ? nullptr : &columns_[i], columns_[i].tag_of_one());
            if (skipped) continue;
            checked_.push_back(i);
            if (spec.list && message == Message::example_list) items_.push_back(i);
        }
    }

    Decoder(const Decoder&) = delete;  // the key tables hold views of the columns' keys
    Decoder& operator=(const Decoder&) = delete;

    std::vector<Column>& columns() { return columns_; }
    static Buffer& values(Column& column) { return column.values; }
    // Return whether rows have one size: fixed numbers or raw bytes.
    static bool is_dense(const Column& column) {
        const ValueLayout layout = column.spec().layout;
        const bool has_values = layout != ValueLayout::skipped && layout != ValueLayout::unset;
        return has_values && !column.stores_bytes() && !column.has_rows();
    }
    // Return whether values of rows of different sizes are kept.
    static bool is_ragged(const Column& column) {
        return (column.stores_bytes() || column.has_rows()) && column.values.keeps();
    }
    static std::size_t row_size(const Column& column) { return column.slot(); }
    // Return whether numbers are stored where an int64 lies.
    static bool is_aligned(const Column& column) {
        return column.spec().kind == Kind::int64 && column.spec().cast == Cast::none;
    }
    void set_memory_limit(std::size_t most) {
        for (Column& column : columns_) column.set_memory_limit(most);
    }
    const Problem& problem() const { return problem_; }

    // Allocate memory for about `factor` times the values decoded so far.
    void preallocate(double factor) {
        for (Column& column : columns_) column.preallocate(factor);
    }

    // Decode a record; false if it is refused.
    bool take(Cursor payload) {
        if (!record(payload)) {
            undo();
            return false;
        }
        ++record_;
        return true;
    }

private:
    // Nesting depth of the messages of a record, `depth_` more within a list of Examples. Unknown groups within them
    // count from there.
    enum Level : std::size_t { in_record, in_map, in_entry, in_value, in_step };

    bool fail(Fault fault) {
        problem_.fault = fault;
        return false;
    }

    // Discard what a refused record stored.
    void undo() {
        for (std::size_t i = 0; i < columns_.size(); ++i) {
            columns_[i].undo(record_);
            if (problem_.fault == Fault::malformed && columns_[i].full()) {
                problem_.fault = Fault::full;  // the record is not at fault: the output buffer is full
                problem_.column = static_cast<int>(i);
            }
        }
    }

    // message Example { Features features = 1; }
    // message SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
    // message ExampleListWithContext { repeated Example examples = 1; Example context = 2; }
    // A repeated message field merges with the preceding ones, but `examples` are items of a list.
    bool record(Cursor record) {
        if (problem_.fault != Fault::none) problem_ = Problem{};
        features_.begin_record();
        lists_.begin_record();
        has_values_ = has_unknown_fields_ = some_read_ = foreign_ = false;
        taken_ = 0;
        step_ = -1;
        for (const std::size_t i : items_) {
            columns_[i].open(record_);
            some_read_ = true;
        }
        while (!record.empty()) {
            std::uint32_t tag;
            if (!record.tag(tag)) return fail(Fault::malformed);
            if (tag == length_delimited(1) || (tag == length_delimited(2) && message_ != Message::example)) {
                Cursor part(record.here(), 0);
                if (!record.delimited(part)) return fail(Fault::malformed);
                if (!part_of_record(part, tag == length_delimited(2))) {
                    return problem_.fault != Fault::none ? false : fail(Fault::malformed);
                }
            } else {
                foreign_ = foreign_ || tag == length_delimited(2);  // the feature lists of a SequenceExample
                has_unknown_fields_ = true;
                if (!record.skip(tag, in_record)) return fail(Fault::malformed);
            }
        }
        // Fields that no writer of Examples writes, and not one feature: another message that happens to parse.
        // Accepting it as an empty Example would invent a row.
        if (foreign_ || (has_unknown_fields_ && !has_values_)) return fail(Fault::not_example);
        return close();
    }

    bool part_of_record(Cursor part, bool second) {
        if (message_ != Message::example_list) {
            return second ? entries<Part::lists>(part, lists_) : entries<Part::features>(part, features_);
        }
        return second ? example<Part::features>(part, features_) : item(part);
    }

    // One of the `examples` of an ExampleListWithContext.
    bool item(Cursor message) {
        ++item_;
        ++step_;
        lists_.begin_record();
        if (!example<Part::items>(message, lists_)) return false;
        for (const std::size_t i : items_) columns_[i].close_item(item_);
        return true;
    }

    // message Example { Features features = 1; }, within a list or as its context.
    template <Part part>
    bool example(Cursor message, Keys& keys) {
        while (!message.empty()) {
            std::uint32_t tag;
            if (!message.tag(tag)) return false;
            if (tag == length_delimited(1)) {
                Cursor map(message.here(), 0);
                if (!message.delimited(map) || !entries<part>(map, keys)) return false;
            } else {
                foreign_ = foreign_ || tag == length_delimited(2);  // a SequenceExample
                has_unknown_fields_ = true;
                if (!message.skip(tag, in_map)) return false;
            }
        }
        return true;
    }

    bool close() {
        // every column has its single value
        if (taken_ == checked_.size() && !some_read_) return true;
        for (const std::size_t i : checked_) {
            if (!columns_[i].close(record_, problem_)) {
                problem_.column = static_cast<int>(i);
                return false;
            }
        }
        return true;
    }

    // message Features { map<string, Feature> feature = 1; }
    // message FeatureLists { map<string, FeatureList> feature_list = 1; }
    template <Part part>
    bool entries(Cursor map, Keys& keys) {
        while (!map.empty()) {
            if constexpr (part != Part::lists) {
                if (keys.expect_one()) map = entries_of_one<part>(map, keys);
                if (map.empty()) break;
            }
            Cursor value(map.here(), 0);
            if (const Keys::Key* key = keys.repeated(map, value)) {
                has_values_ = true;
                if (key->column != nullptr && !enter<part>(value, *key->column)) return false;
                continue;
            }
            std::uint32_t tag;
            if (!map.tag(tag)) return false;
            if (tag == length_delimited(1)) {
                Cursor one(map.here(), 0);
                if (!map.delimited(one) || !entry<part>(one, keys)) return false;
            } else {
                has_unknown_fields_ = true;
                if (!map.skip(tag, depth_ + in_map)) return false;
            }
        }
        return true;
    }

    // Store the next entries that are expected ones of one value each. Return what follows them.
    template <Part part>
    DTF_APART Cursor entries_of_one(Cursor map, Keys& keys) {
        // Members are written at the end: bytes of values could be any of them to the compiler.
        const std::uint64_t row = part == Part::items ? item_ : record_;
        std::size_t count = 0;
        keys.follow([&](const Keys::Key& key) {
            Cursor rest = map, entry(map.here(), 0), value(map.here(), 0);
            if (key.one.fixed == sizeof(float)) {
                if (!rest.fixed_entry(key.one, sizeof(float), value)) return false;
                if (!take<part>(*key.column, Kind::floats, row, value, value)) return false;
            } else {
                if (!rest.short_entry(key.one, entry, value)) return false;
                if (!take<part>(*key.column, key.column->spec().kind, row, entry, value)) return false;
            }
            map = rest;
            ++count;
            return true;
        });
        if (count > 0) has_values_ = true;
        if (part == Part::features) taken_ += count;
        return map;
    }

    template <Part part>
    DTF_INLINE static bool take(Column& column, Kind kind, std::uint64_t row, Cursor feature, Cursor value) {
        if constexpr (part == Part::items) return column.take_one_of_item(kind, row, feature, value);
        return column.take_one(kind, row, feature, value);
    }

    // A map entry { string key = 1; value = 2; } in the order that nearly every writer uses: key, value, end.
    template <Part part>
    bool entry(Cursor entry, Keys& keys) {
        Cursor quick = entry;
        Cursor key(entry.here(), 0);
        Cursor value(entry.here(), 0);
        std::uint32_t tag;
        if (quick.tag(tag) && tag == length_delimited(1) && quick.delimited(key) && quick.tag(tag) &&
            tag == length_delimited(2) && quick.delimited(value) && quick.empty()) {
            Column* column;
            has_values_ = true;
            return find(key, keys, column) && (column == nullptr || enter<part>(value, *column));
        }
        return any_entry<part>(entry, keys);
    }

    // Store the single value of an entry.
    template <Part part>
    DTF_INLINE bool enter(Cursor value, Column& column) {
        if constexpr (part != Part::lists) {
            Cursor one(value.here(), 0);
            const std::uint64_t row = part == Part::items ? item_ : record_;
            if (column.is_one(value, one) && take<part>(column, column.spec().kind, row, value, one)) {
                if (part == Part::features) ++taken_;
                return true;
            }
        }
        open<part>(column);
        return read<part>(value, column);
    }

    // Start an entry of the key of a column.
    template <Part part>
    DTF_INLINE void open(Column& column) {
        if constexpr (part == Part::items) {
            column.open_item(item_);
        } else {
            some_read_ = true;
            column.open(record_);
        }
    }

    template <Part part>
    DTF_INLINE bool read(Cursor value, Column& column) {
        if constexpr (part == Part::lists) return feature_list(value, column);
        return feature(value, column, depth_ + in_value);
    }

    // Fields in any order and number: the last key counts, and values merge.
    template <Part part>
    bool any_entry(const Cursor entry, Keys& keys) {
        Cursor key(entry.here(), 0);
        Cursor value(entry.here(), 0);
        bool is_feature = false;
        for (Cursor rest = entry; !rest.empty();) {
            std::uint32_t tag;
            if (!rest.tag(tag)) return false;
            if (tag != length_delimited(1)) {
                is_feature = is_feature || tag == length_delimited(2);
                if (!rest.skip(tag, depth_ + in_entry)) return false;
            } else if (!rest.delimited(key) || !is_utf8(key.here(), key.left())) {
                return false;
            }
        }
        // A key without a value is a feature, too. But a key that starts like a message is one: keys and values of
        // another message, a level deeper.
        is_feature = is_feature || (key.left() > 0 && *key.here() >= ' ');
        (is_feature ? has_values_ : has_unknown_fields_) = true;
        Column* column;
        if (!find(key, keys, column)) return false;
        if (column == nullptr) return true;
        open<part>(*column);
        for (Cursor rest = entry; !rest.empty();) {
            std::uint32_t tag;
            if (!rest.tag(tag)) return false;
            if (tag != length_delimited(2)) {
                if (!rest.skip(tag, depth_ + in_entry)) return false;
            } else if (!rest.delimited(value) || !read<part>(value, *column)) {
                return false;
            }
        }
        return true;
    }

    // message FeatureList { repeated Feature feature = 1; }
    bool feature_list(Cursor list, Column& column) {
        while (!list.empty()) {
            if (!column.take_step(list) && !any_step(list, column)) return false;
        }
        return true;
    }

    DTF_APART bool any_step(Cursor& list, Column& column) {
        std::uint32_t tag;
        if (!list.tag(tag)) return false;
        if (tag != length_delimited(1)) return list.skip(tag, in_value);
        Cursor step(list.here(), 0);
        if (!list.delimited(step)) return false;
        column.open_step();
        if (!feature(step, column, in_step)) return false;
        column.close_step();
        return true;
    }

    // message Feature { oneof kind { BytesList = 1; FloatList = 2; Int64List = 3; } }, at nesting depth `level`.
    bool feature(Cursor value, Column& column, std::size_t level) {
        // nearly every Feature is a single list with a single field: packed numbers, or one string
        Cursor quick = value;
        std::uint8_t kind, one;
        if (quick.only_field(kind) && quick.only_field(one) && one == length_delimited(1)) {
            if (kind == length_delimited(3) && column.list(Kind::int64)) return column.add_packed_int64(quick);
            if (kind == length_delimited(2) && column.list(Kind::floats)) return column.add_packed_float(quick);
            if (kind == length_delimited(1) && column.list(Kind::bytes)) return column.add_bytes(quick);
        }
        return any_feature(value, column, level);
    }

    DTF_APART bool any_feature(Cursor value, Column& column, std::size_t level) {
        while (!value.empty()) {
            std::uint32_t tag;
            if (!value.tag(tag)) return false;
            const std::uint32_t field = tag >> 3;
            if ((tag & 7) != 2 || field > 3) {
                if (!value.skip(tag, level)) return false;
                continue;
            }
            Cursor list(value.here(), 0);
            if (!value.delimited(list)) return false;
            const Kind kind = static_cast<Kind>(field);
            if (column.list(kind)) {
                if (!list_of(kind, list, column, level + 1)) return false;
            } else {
                // An unwanted list is parsed too, as protobuf parses a message before overriding it.
                const std::uint64_t before = counted_only_.values_found();
                if (!list_of(kind, list, counted_only_, level + 1)) return false;
                column.pass_over(counted_only_.values_found() - before);
            }
        }
        return true;
    }

    static bool list_of(Kind kind, Cursor list, Column& column, std::size_t level) {
        if (kind == Kind::int64) return int64_list(list, column, level);
        return kind == Kind::floats ? float_list(list, column, level) : bytes_list(list, column, level);
    }

    static bool int64_list(Cursor list, Column& column, std::size_t level) {
        while (!list.empty()) {
            std::uint32_t tag;
            std::uint64_t value;
            Cursor packed(list.here(), 0);
            if (!list.tag(tag)) return false;
            if (tag == length_delimited(1)) {
                if (!list.delimited(packed) || !column.add_packed_int64(packed)) return false;
            } else if (tag == tag_of(1, WireType::varint)) {
                if (!list.varint(value) || !column.add_int64(static_cast<std::int64_t>(value))) return false;
            } else if (!list.skip(tag, level)) {
                return false;
            }
        }
        return true;
    }

    static bool float_list(Cursor list, Column& column, std::size_t level) {
        while (!list.empty()) {
            std::uint32_t tag;
            Cursor packed(list.here(), 0);
            if (!list.tag(tag)) return false;
            if (tag == length_delimited(1)) {
                if (!list.delimited(packed) || !column.add_packed_float(packed)) return false;
            } else if (tag == tag_of(1, WireType::fixed32)) {
                const std::uint8_t* bits = list.take(4);
                if (bits == nullptr || !column.add_float(bits)) return false;
            } else if (!list.skip(tag, level)) {
                return false;
            }
        }
        return true;
    }

    static bool bytes_list(Cursor list, Column& column, std::size_t level) {
        while (!list.empty()) {
            std::uint32_t tag;
            Cursor value(list.here(), 0);
            if (!list.tag(tag)) return false;
            if (tag == length_delimited(1)) {
                if (!list.delimited(value) || !column.add_bytes(value)) return false;
            } else if (!list.skip(tag, level)) {
                return false;
            }
        }
        return true;
    }

    // Set the column of a key, or null if the key is unwanted; false if the key is an error.
    DTF_INLINE bool find(Cursor key, Keys& keys, Column*& column) {
        const Keys::Key* known = keys.find(key);
        column = known == nullptr ? nullptr : known->column;
        return known != nullptr || unknown(key, keys);
    }

    bool unknown(Cursor key, Keys& keys) {
        const std::size_t size = key.left();
        if (!is_utf8(key.here(), size)) return false;  // as protobuf: an invalid string makes the message malformed
        if (!closed_) {
            keys.pass(key);
            return true;
        }
        problem_.fault = Fault::unknown_key;
        if (&keys == &lists_) problem_.step = step_;
        const auto* text = reinterpret_cast<const char*>(key.here());
        std::size_t shown = size < longest_shown ? size : longest_shown;
        while (shown < size && (text[shown] & 0xc0) == 0x80) --shown;  // do not cut within a character
        problem_.text.assign(text, shown);
        return false;
    }

    static ColumnSpec nothing() {
        ColumnSpec spec;
        spec.layout = ValueLayout::fixed;
        spec.count = 0;
        return spec;
    }

    static constexpr std::size_t longest_shown = 1000;

    bool closed_;
    Message message_;
    std::size_t depth_;  // of Features below their place in an Example
    std::vector<Column> columns_;
    Column counted_only_{nothing()};  // keeps no values
    Keys features_;
    Keys lists_;
    std::vector<std::size_t> checked_;  // columns that are not skipped
    std::vector<std::size_t> items_;    // those of items of a list of Examples
    std::uint64_t record_ = 0;
    std::uint64_t item_ = 0;  // number of items so far, of refused records too
    std::int64_t step_ = -1;  // item of the record, or -1
    bool has_values_ = false;    // the record has a map entry that is a feature
    bool has_unknown_fields_ = false;  // the record has unknown fields, or a map entry that is none
    bool foreign_ = false;       // the record has a field that only another message has
    bool some_read_ = false;     // the record has a value that was not stored by the fast path
    std::size_t taken_ = 0;      // number of columns of the record that the fast path filled
    Problem problem_;
};

}  // namespace dtf
