// Flat arrays to records: tf.train.Example, SequenceExample and ExampleListWithContext messages, framed, with both CRCs.
//
// The encoding is the one that protobuf writes: lists of numbers are packed, varints have their shortest form, and map
// entries are in the order of the fields. example.hpp describes the messages, framing.hpp the frame.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "example.hpp"

namespace dtf {

// View of an array of splits. Group i has the items splits[i] to splits[i + 1].
struct Splits {
    const std::int64_t* data;
    std::size_t size;
};

// Values of one key of the records: views of arrays of the caller. A row has values, or, in a feature list, steps that
// have values. A key of the items of a list of Examples is a feature list whose steps are the items.
struct Field {
    std::string key;
    Kind kind = Kind::int64;
    bool list = false;      // a feature list
    std::size_t count = 1;  // values of each row or step, where splits are absent
    std::string prefix;     // bytes: written before each value
    const std::uint8_t* values = nullptr;
    std::size_t nbytes = 0;              // of the values
    std::optional<Splits> value_splits;  // bytes: splits of `values` by value
    std::optional<Splits> step_splits;   // feature list: splits of the values by step
    std::optional<Splits> row_splits;    // splits of the values, or steps, by row
};

// Throws if arguments contradict each other. The content of the arrays is checked when an encoder copies it.
inline void check_field(const Field& field) {
    if (field.kind == Kind::none) throw std::invalid_argument("a field needs a kind of values");
    if (field.count > most_values) throw std::invalid_argument("count exceeds 2**59");
    const bool bytes = field.kind == Kind::bytes;
    if (bytes != field.value_splits.has_value()) {
        throw std::invalid_argument("bytes values need value_splits, and numbers cannot have them");
    }
    if (!bytes && !field.prefix.empty()) throw std::invalid_argument("only bytes values have a prefix");
    if (field.list ? !field.row_splits.has_value() : field.step_splits.has_value()) {
        throw std::invalid_argument("feature lists need row_splits, and only they have step_splits");
    }
}

struct Encoded {
    std::uint64_t records = 0;
    std::uint64_t bytes = 0;
    std::uint64_t need = 0;  // buffer size that the next record needs, if it did not fit; 0 after the last record
};

// Bytes after a record that are overwritten with arbitrary content.
constexpr std::size_t slack = 16;

// Largest message that protobuf reads.
constexpr std::uint64_t most_payload = INT32_MAX;

// Copies the splits of `groups` groups and validates the copy. Returns the end of the last group.
inline std::size_t copy_splits(const std::optional<Splits>& splits, std::size_t groups, std::size_t count,
                               std::vector<std::int64_t>& copy) {
    if (!splits) {
        if (count != 0 && groups > most_values / count) throw std::invalid_argument("more than 2**59 values");
        return groups * count;
    }
    if (splits->size == 0 || splits->size - 1 < groups) {
        throw std::invalid_argument("splits must have one entry more than there are rows, steps or values");
    }
    copy.assign(splits->data, splits->data + groups + 1);
    bool ascend = copy[0] >= 0;
    for (std::size_t i = 0; i < groups; ++i) ascend &= copy[i] <= copy[i + 1];
    if (!ascend) throw std::invalid_argument("splits must ascend and be non-negative");
    return static_cast<std::size_t>(copy[groups]);
}

// One byte for each 7 bits: 9/64 approximates 1/7 closely enough for 64 bits.
DTF_INLINE std::size_t varint_size(std::uint64_t value) { return (highest_bit(value | 1) * 9 + 73) / 64; }

// Spreads 56 bits to eight bytes, seven bits each.
DTF_INLINE std::uint64_t spread(std::uint64_t value) {
    value = (value & 0x000000000fffffffu) | (value & 0x00fffffff0000000u) << 4;
    value = (value & 0x00003fff00003fffu) | (value & 0x0fffc0000fffc000u) << 2;
    return (value & 0x007f007f007f007fu) | (value & 0x3f803f803f803f80u) << 1;
}

DTF_APART inline std::uint8_t* put_long_varint(std::uint8_t* at, std::uint64_t value) {
    while (value >= 0x80) {
        *at++ = static_cast<std::uint8_t>(value | 0x80);
        value >>= 7;
    }
    *at++ = static_cast<std::uint8_t>(value);
    return at;
}

// The sizes of consecutive values differ, so a branch on the size is slow. Eight bytes are written at once; the next
// value overwrites the surplus, and `slack` takes that of the last value.
DTF_INLINE std::uint8_t* put_varint(std::uint8_t* at, std::uint64_t value) {
    if (value < 0x80) {
        *at = static_cast<std::uint8_t>(value);
        return at + 1;
    }
    if (value >> 56 != 0) return put_long_varint(at, value);
    const std::size_t size = varint_size(value);
    const std::uint64_t more = 0x8080808080808080u & ((std::uint64_t{1} << (8 * (size - 1))) - 1);
    const std::uint64_t bytes = spread(value) | more;
    std::memcpy(at, &bytes, sizeof bytes);
    return at + size;
}

// Write the CRC of `size` bytes.
inline void store_crc(crc::Function function, std::uint8_t* at, const std::uint8_t* data, std::size_t size) {
    const std::uint32_t crc = crc::mask(function(data, size));
    std::memcpy(at, &crc, sizeof crc);
}

// Write records of rows from `first` on, as many as fit. `size` returns the bytes of a row's payload, `put` writes it.
template <class Size, class Put>
Encoded put_records(std::size_t first, std::size_t rows, std::uint8_t* out, std::size_t capacity, Size size, Put put) {
    const crc::Function crc = crc::best();
    Encoded done;
    for (std::size_t row = first; row < rows; ++row) {
        const std::uint64_t payload = size(row);
        const std::uint64_t whole = header_size + payload + footer_size;
        if (payload > most_payload || whole + slack > capacity - done.bytes) {
            done.need = whole + slack;
            return done;
        }
        std::uint8_t* at = out + done.bytes;
        std::memcpy(at, &payload, 8);
        store_crc(crc, at + 8, at, 8);
        put(at + header_size, row);
        store_crc(crc, at + header_size + payload, at + header_size, static_cast<std::size_t>(payload));
        done.bytes += whole;
        ++done.records;
    }
    return done;
}

// Encodes fields to records. The constructor copies the splits that it validates, so arrays that the caller changes
// later cannot move a read out of bounds. Values are read in place; `encode` detects int64 values that change meanwhile.
class Encoder {
public:
    Encoder(const std::vector<Field>& fields, std::size_t rows, Message message) : rows_(rows), message_(message) {
        std::unordered_set<std::string> keys[2];
        for (const Field& field : fields) {
            check_field(field);
            if (!keys[field.list].insert(field.key).second) {
                throw std::invalid_argument("two fields have the same key");
            }
            (field.list ? lists_ : features_).push_back(entry_of(field, rows));
        }
        if (message == Message::example_list) check_items();
    }

    // Writes records from row `first` on, as many as fit in `capacity` bytes.
    Encoded encode(std::size_t first, std::uint8_t* out, std::size_t capacity) {
        end_ = out + capacity;
        return put_records(
            first, rows_, out, capacity, [this](std::size_t row) { return payload_size(row); },
            [this](std::uint8_t* at, std::size_t row) { put_payload(at, row); });
    }

private:
    // A field with its own copy of the splits; absent ones are empty.
    struct Entry {
        Kind kind;
        std::uint8_t tag;  // of the list in a Feature
        bool list;
        std::size_t count;
        const std::uint8_t* values;
        std::vector<std::int64_t> value_splits, step_splits, row_splits;
        std::string prefix;
        std::string head;  // tag and length of the key, the key, tag of the value: the same in every record
    };
    // Values `begin` to `end` of a field.
    struct Span {
        std::size_t begin, end;
    };

    // Tags of the first and second field of a message.
    static constexpr auto first_tag = static_cast<std::uint8_t>(length_delimited(1));
    static constexpr auto second_tag = static_cast<std::uint8_t>(length_delimited(2));
    static constexpr std::uint8_t tag_features = first_tag, tag_lists = second_tag;   // of Example and SequenceExample
    static constexpr std::uint8_t tag_example = first_tag, tag_context = second_tag;  // of ExampleListWithContext
    static constexpr std::uint8_t tag_entry = first_tag, tag_key = first_tag, tag_value = second_tag;
    static constexpr std::uint8_t tag_step = first_tag, tag_item = first_tag;
    static constexpr std::size_t longest_varint = 10;
    static constexpr const char* changed = "values changed while they were encoded: do not write to arrays in use";

    static Entry entry_of(const Field& field, std::size_t rows) {
        Entry entry{field.kind, list_tag(field.kind), field.list, field.count, field.values, {}, {}, {}, field.prefix, {}};
        std::uint8_t begin[1 + slack] = {tag_key};
        const std::uint8_t* end = put_varint(begin + 1, field.key.size());
        entry.head.assign(static_cast<const std::uint8_t*>(begin), end);
        entry.head += field.key;
        entry.head += static_cast<char>(tag_value);
        std::size_t items = copy_splits(field.row_splits, rows, field.count, entry.row_splits);
        if (field.list) items = copy_splits(field.step_splits, items, field.count, entry.step_splits);
        const std::size_t width = field.kind == Kind::floats ? 4 : 8;
        const std::size_t nbytes = field.kind == Kind::bytes
                                       ? copy_splits(field.value_splits, items, 1, entry.value_splits)
                                       : copy_splits(std::nullopt, items, width, entry.value_splits);
        if (nbytes > field.nbytes) throw std::invalid_argument("the splits or counts exceed the values");
        return entry;
    }

    // Items have all keys, so their number is the same for each key.
    void check_items() const {
        for (const Entry& entry : lists_) {
            for (std::size_t row = 0; row < rows_; ++row) {
                if (item_count(entry, row) != item_count(lists_[0], row)) {
                    throw std::invalid_argument("keys of items must have equal numbers of steps in each row");
                }
            }
        }
    }

    static std::size_t item_count(const Entry& entry, std::size_t row) {
        return split(entry.row_splits, row + 1) - split(entry.row_splits, row);
    }

    std::size_t items_of(std::size_t row) const { return lists_.empty() ? 0 : item_count(lists_[0], row); }

    // Size of a length-delimited field with a tag of one byte.
    static std::uint64_t field_size(std::uint64_t body) { return 1 + varint_size(body) + body; }

    static std::uint8_t* put_field(std::uint8_t* at, std::uint8_t tag, std::uint64_t body) {
        *at = tag;
        return put_varint(at + 1, body);
    }

    static std::size_t split(const std::vector<std::int64_t>& splits, std::size_t at) {
        return static_cast<std::size_t>(splits[at]);
    }

    // Items of one group: by splits, or `count` of them.
    static Span span(const std::vector<std::int64_t>& splits, std::size_t group, std::size_t count) {
        if (splits.empty()) return {group * count, (group + 1) * count};
        return {split(splits, group), split(splits, group + 1)};
    }

    bool writes_context() const { return message_ == Message::example || !features_.empty(); }

    // A message is preceded by its length, so all sizes of a record are computed first and kept in `sizes_`, in the
    // order in which `put_payload` writes them.
    std::uint64_t payload_size(std::size_t row) {
        sizes_.clear();
        std::uint64_t size = 0;
        if (message_ == Message::example_list) {
            for (std::size_t item = 0; item < items_of(row); ++item) {
                size += field_size(field_size(map_size<Part::items>(lists_, row, item)));
            }
            return writes_context() ? size + field_size(field_size(map_size<Part::features>(features_, row))) : size;
        }
        if (writes_context()) size += field_size(map_size<Part::features>(features_, row));
        return lists_.empty() ? size : size + field_size(map_size<Part::lists>(lists_, row));
    }

    std::uint8_t* put_payload(std::uint8_t* at, std::size_t row) {
        next_ = 0;
        if (message_ == Message::example_list) {
            for (std::size_t item = 0; item < items_of(row); ++item) {
                at = put_field(at, tag_example, field_size(sizes_[next_]));
                at = put_map<Part::items>(at, tag_features, lists_, row, item);
            }
            if (!writes_context()) return at;
            at = put_field(at, tag_context, field_size(sizes_[next_]));
            return put_map<Part::features>(at, tag_features, features_, row);
        }
        if (writes_context()) at = put_map<Part::features>(at, tag_features, features_, row);
        return lists_.empty() ? at : put_map<Part::lists>(at, tag_lists, lists_, row);
    }

    // Values of a row, or of an item of it.
    template <Part part>
    static Span values_of(const Entry& field, std::size_t row, std::size_t item) {
        if constexpr (part == Part::items) {
            return span(field.step_splits, split(field.row_splits, row) + item, field.count);
        }
        return span(field.row_splits, row, field.count);
    }

    // Size of a map, which is added to `sizes_` before those within it.
    template <Part part>
    std::uint64_t map_size(const std::vector<Entry>& entries, std::size_t row, std::size_t item = 0) {
        const std::size_t index = sizes_.size();
        sizes_.push_back(0);
        std::uint64_t size = 0;
        for (const Entry& entry : entries) {
            const std::uint64_t value = part == Part::lists ? steps_size(entry, row)
                                                            : feature_size(entry, values_of<part>(entry, row, item));
            size += field_size(entry.head.size() + varint_size(value) + value);
        }
        sizes_[index] = size;
        return size;
    }

    std::uint64_t steps_size(const Entry& field, std::size_t row) {
        const Span steps = span(field.row_splits, row, 1);
        const std::size_t index = sizes_.size();
        sizes_.push_back(0);
        std::uint64_t size = 0;
        for (std::size_t step = steps.begin; step < steps.end; ++step) {
            size += field_size(feature_size(field, span(field.step_splits, step, field.count)));
        }
        sizes_[index] = size;
        return size;
    }

    // Size of a Feature. The size of its packed values, or of its list of bytes values, is added to `sizes_`.
    std::uint64_t feature_size(const Entry& field, Span values) {
        const std::uint64_t inside = inner_size(field, values);
        sizes_.push_back(inside);
        return field_size(list_size(field, inside));
    }

    static std::uint64_t list_size(const Entry& field, std::uint64_t inside) {
        return field.kind == Kind::bytes || inside == 0 ? inside : field_size(inside);
    }

    static std::uint64_t inner_size(const Entry& field, Span values) {
        if (field.kind == Kind::floats) return 4 * (values.end - values.begin);
        std::uint64_t size = 0;
        if (field.kind == Kind::bytes) {
            for (std::size_t value = values.begin; value < values.end; ++value) {
                size += field_size(field.prefix.size() + length(field, value));
            }
            return size;
        }
        for (std::size_t value = values.begin; value < values.end; ++value) size += varint_size(integer(field, value));
        return size;
    }

    static std::size_t length(const Entry& field, std::size_t value) {
        return split(field.value_splits, value + 1) - split(field.value_splits, value);
    }

    DTF_INLINE static std::uint64_t integer(const Entry& field, std::size_t value) {
        return load<std::uint64_t>(field.values + 8 * value);
    }

    template <Part part>
    std::uint8_t* put_map(std::uint8_t* at, std::uint8_t tag, const std::vector<Entry>& entries, std::size_t row,
                          std::size_t item = 0) {
        at = put_field(at, tag, sizes_[next_++]);
        for (const Entry& field : entries) {
            const std::uint64_t size = sizes_[next_];
            const std::uint64_t value = part == Part::lists ? size : field_size(list_size(field, size));
            at = put_field(at, tag_entry, field.head.size() + varint_size(value) + value);
            std::memcpy(at, field.head.data(), field.head.size());
            at = put_varint(at + field.head.size(), value);
            at = part == Part::lists ? put_steps(at, field, row)
                                     : put_feature(at, field, values_of<part>(field, row, item));
        }
        return at;
    }

    std::uint8_t* put_steps(std::uint8_t* at, const Entry& field, std::size_t row) {
        const Span steps = span(field.row_splits, row, 1);
        ++next_;
        for (std::size_t step = steps.begin; step < steps.end; ++step) {
            at = put_field(at, tag_step, field_size(list_size(field, sizes_[next_])));
            at = put_feature(at, field, span(field.step_splits, step, field.count));
        }
        return at;
    }

    std::uint8_t* put_feature(std::uint8_t* at, const Entry& field, Span values) {
        const std::uint64_t inside = sizes_[next_++];
        at = put_field(at, field.tag, list_size(field, inside));
        if (field.kind == Kind::bytes) {
            for (std::size_t value = values.begin; value < values.end; ++value) at = put_bytes(at, field, value);
            return at;
        }
        if (inside == 0) return at;
        at = put_field(at, tag_item, inside);
        if (field.kind == Kind::floats) {
            std::memcpy(at, field.values + 4 * values.begin, static_cast<std::size_t>(inside));
            return at + inside;
        }
        return put_integers(at, field, values, at + inside);
    }

    // The values may have changed since their sizes were computed: `end_` bounds the writes, and `expected` detects it.
    std::uint8_t* put_integers(std::uint8_t* at, const Entry& field, Span values, const std::uint8_t* expected) const {
        for (std::size_t value = values.begin; value < values.end;) {
            const std::size_t fit = static_cast<std::size_t>(end_ - at) / longest_varint;
            if (fit == 0) throw std::runtime_error(changed);
            const std::size_t last = values.end - value < fit ? values.end : value + fit;
            for (; value < last; ++value) at = put_varint(at, integer(field, value));
        }
        if (at != expected) throw std::runtime_error(changed);
        return at;
    }

    static std::uint8_t* put_bytes(std::uint8_t* at, const Entry& field, std::size_t value) {
        const std::size_t size = length(field, value);
        at = put_field(at, tag_item, field.prefix.size() + size);
        std::memcpy(at, field.prefix.data(), field.prefix.size());
        at += field.prefix.size();
        // The values of an empty array may be a null pointer.
        if (size != 0) std::memcpy(at, field.values + split(field.value_splits, value), size);
        return at + size;
    }

    std::size_t rows_;
    Message message_;
    std::vector<Entry> features_, lists_;
    std::vector<std::uint64_t> sizes_;   // of one record, in the order in which `put_map` needs them
    std::size_t next_ = 0;               // index of the next size
    const std::uint8_t* end_ = nullptr;  // of the output buffer
};

}  // namespace dtf
