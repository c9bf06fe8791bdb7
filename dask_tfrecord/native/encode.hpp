// Columns of flat arrays into records: tf.train.Example and SequenceExample, framed, with both CRCs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "example.hpp"

namespace dtf {

// What one key of the records holds. Values are grouped twice at the most: a row has values, or, in a feature list,
// steps, which have values. The arrays are lent: whoever makes a field has looked over them.
struct Field {
    std::string key;
    Kind kind = Kind::int64;
    bool list = false;      // a feature list
    std::size_t count = 1;  // values of each row, or of each step, where no splits say how many
    std::string prefix;     // bytes: what stands before each value
    const std::uint8_t* values = nullptr;
    const std::int64_t* value_splits = nullptr;  // bytes: where each value ends
    const std::int64_t* step_splits = nullptr;   // a feature list: where the values of each step end
    const std::int64_t* row_splits = nullptr;    // where the values, or steps, of each row end
};

struct Encoded {
    std::uint64_t records = 0;
    std::uint64_t bytes = 0;
    std::uint64_t need = 0;  // bytes of room for the next record, where there was less; 0 where no record is left
};

// Bytes behind a record that are written to, and mean nothing.
constexpr std::size_t slack = 16;

// protobuf takes no larger message.
constexpr std::uint64_t most_payload = INT32_MAX;

class Encoder {
public:
    Encoder(std::vector<Field> fields, std::size_t rows, Message message) : rows_(rows), message_(message) {
        for (Field& field : fields) {
            // Tag and length of the key, the key, and the tag of the value: the same in every record.
            std::uint8_t begin[1 + slack] = {tag_key};
            const std::uint8_t* end = put_varint(begin + 1, field.key.size());
            std::string head(static_cast<const std::uint8_t*>(begin), end);
            head += field.key;
            head += static_cast<char>(tag_value);
            (field.list ? lists_ : features_).push_back({std::move(field), std::move(head)});
        }
    }

    // Records from `first` on, as many as there is room for.
    Encoded encode(std::size_t first, std::uint8_t* out, std::size_t room) {
        Encoded done;
        for (std::size_t row = first; row < rows_; ++row) {
            sizes_.clear();
            const std::uint64_t features = map_size(features_, row);
            const std::uint64_t lists = map_size(lists_, row);
            std::uint64_t payload = 0;
            const bool context = message_ == Message::example || !features_.empty();
            if (context) payload += field_size(features);
            if (!lists_.empty()) payload += field_size(lists);
            const std::uint64_t whole = header_size + payload + footer_size;
            if (payload > most_payload || whole + slack > room - done.bytes) {
                done.need = whole + slack;
                return done;
            }
            std::uint8_t* at = out + done.bytes;
            std::memcpy(at, &payload, 8);
            store_crc(at + 8, at, 8);
            std::uint8_t* begin = at + header_size;
            at = begin;
            next_ = 0;
            if (context) at = put_map(put_field(at, tag_features, features), features_, row);
            if (!lists_.empty()) at = put_map(put_field(at, tag_lists, lists), lists_, row);
            store_crc(at, begin, static_cast<std::size_t>(payload));
            done.bytes += whole;
            ++done.records;
        }
        return done;
    }

private:
    struct Entry {
        Field field;
        std::string head;
    };
    // Values `begin` to `end` of a field.
    struct Span {
        std::size_t begin, end;
    };

    static constexpr std::uint8_t tag_features = 0x0a, tag_lists = 0x12;  // of Example and SequenceExample
    static constexpr std::uint8_t tag_entry = 0x0a, tag_key = 0x0a, tag_value = 0x12;
    static constexpr std::uint8_t tag_step = 0x0a, tag_item = 0x0a;

    // Seven bits to a byte: 9/64 is near enough to 1/7 for all 64 of them.
    DTF_INLINE static std::size_t varint_size(std::uint64_t value) { return (highest_bit(value | 1) * 9 + 73) / 64; }

    // Values differ in size from one to the next, so what branches on it is slow: eight bytes are written at once, of
    // which the next value overwrites some, and `slack` the last ones' overflow.
    DTF_INLINE static std::uint8_t* put_varint(std::uint8_t* at, std::uint64_t value) {
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

    // 56 bits, seven to each byte.
    DTF_INLINE static std::uint64_t spread(std::uint64_t value) {
        value = (value & 0x000000000fffffffu) | (value & 0x00fffffff0000000u) << 4;
        value = (value & 0x00003fff00003fffu) | (value & 0x0fffc0000fffc000u) << 2;
        return (value & 0x007f007f007f007fu) | (value & 0x3f803f803f803f80u) << 1;
    }

    DTF_APART static std::uint8_t* put_long_varint(std::uint8_t* at, std::uint64_t value) {
        while (value >= 0x80) {
            *at++ = static_cast<std::uint8_t>(value | 0x80);
            value >>= 7;
        }
        *at++ = static_cast<std::uint8_t>(value);
        return at;
    }

    // Bytes of a length-delimited field with a tag of one byte.
    static std::uint64_t field_size(std::uint64_t body) { return 1 + varint_size(body) + body; }

    static std::uint8_t* put_field(std::uint8_t* at, std::uint8_t tag, std::uint64_t body) {
        *at = tag;
        return put_varint(at + 1, body);
    }

    void store_crc(std::uint8_t* at, const std::uint8_t* data, std::size_t size) const {
        const std::uint32_t crc = crc::mask(crc_(data, size));
        std::memcpy(at, &crc, sizeof crc);
    }

    static std::size_t split(const std::int64_t* splits, std::size_t at) {
        return static_cast<std::size_t>(splits[at]);
    }

    // The items of one group: by splits, or `count` of them.
    static Span span(const std::int64_t* splits, std::size_t group, std::size_t count) {
        if (splits == nullptr) return {group * count, (group + 1) * count};
        return {split(splits, group), split(splits, group + 1)};
    }

    // Sizes are found first, outermost last, and noted: the lengths of messages stand before what is in them.
    std::uint64_t map_size(const std::vector<Entry>& entries, std::size_t row) {
        std::uint64_t size = 0;
        for (const Entry& entry : entries) {
            const std::uint64_t value = value_size(entry.field, row);
            size += field_size(entry.head.size() + varint_size(value) + value);
        }
        return size;
    }

    std::uint64_t value_size(const Field& field, std::size_t row) {
        if (!field.list) return feature_size(field, span(field.row_splits, row, field.count));
        const Span steps = span(field.row_splits, row, 1);
        const std::size_t noted = sizes_.size();
        sizes_.push_back(0);
        std::uint64_t size = 0;
        for (std::size_t step = steps.begin; step < steps.end; ++step) {
            size += field_size(feature_size(field, span(field.step_splits, step, field.count)));
        }
        sizes_[noted] = size;
        return size;
    }

    // Bytes of a Feature; those of its packed values, or of its list of bytes values, are noted.
    std::uint64_t feature_size(const Field& field, Span values) {
        const std::uint64_t inside = inner_size(field, values);
        sizes_.push_back(inside);
        return field_size(list_size(field, inside));
    }

    static std::uint64_t list_size(const Field& field, std::uint64_t inside) {
        return field.kind == Kind::bytes || inside == 0 ? inside : field_size(inside);
    }

    static std::uint64_t inner_size(const Field& field, Span values) {
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

    static std::size_t length(const Field& field, std::size_t value) {
        return split(field.value_splits, value + 1) - split(field.value_splits, value);
    }

    DTF_INLINE static std::uint64_t integer(const Field& field, std::size_t value) {
        return load<std::uint64_t>(field.values + 8 * value);
    }

    std::uint8_t* put_map(std::uint8_t* at, const std::vector<Entry>& entries, std::size_t row) {
        for (const Entry& entry : entries) {
            const Field& field = entry.field;
            const std::uint64_t noted = sizes_[next_];
            const std::uint64_t value = field.list ? noted : field_size(list_size(field, noted));
            at = put_field(at, tag_entry, entry.head.size() + varint_size(value) + value);
            std::memcpy(at, entry.head.data(), entry.head.size());
            at = put_varint(at + entry.head.size(), value);
            at = field.list ? put_steps(at, field, row) : put_feature(at, field, span(field.row_splits, row, field.count));
        }
        return at;
    }

    std::uint8_t* put_steps(std::uint8_t* at, const Field& field, std::size_t row) {
        const Span steps = span(field.row_splits, row, 1);
        ++next_;
        for (std::size_t step = steps.begin; step < steps.end; ++step) {
            at = put_field(at, tag_step, field_size(list_size(field, sizes_[next_])));
            at = put_feature(at, field, span(field.step_splits, step, field.count));
        }
        return at;
    }

    std::uint8_t* put_feature(std::uint8_t* at, const Field& field, Span values) {
        const std::uint64_t inside = sizes_[next_++];
        at = put_field(at, static_cast<std::uint8_t>(static_cast<int>(field.kind) << 3 | 2), list_size(field, inside));
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
        for (std::size_t value = values.begin; value < values.end; ++value) at = put_varint(at, integer(field, value));
        return at;
    }

    static std::uint8_t* put_bytes(std::uint8_t* at, const Field& field, std::size_t value) {
        const std::size_t size = length(field, value);
        at = put_field(at, tag_item, field.prefix.size() + size);
        std::memcpy(at, field.prefix.data(), field.prefix.size());
        at += field.prefix.size();
        // An empty array may have no memory at all.
        if (size != 0) std::memcpy(at, field.values + split(field.value_splits, value), size);
        return at + size;
    }

    crc::Function crc_ = crc::best();
    std::size_t rows_;
    Message message_;
    std::vector<Entry> features_, lists_;
    std::vector<std::uint64_t> sizes_;  // of one record, in the order in which they are needed again
    std::size_t next_ = 0;
};

}  // namespace dtf
