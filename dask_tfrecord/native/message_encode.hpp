// Columns to records of any protobuf message, driven by field tables: the inverse of message_decode.hpp.
//
// The encoding is the one that protobuf writes deterministically. A message is written from its end to its begin, so
// that its size is known when its tag is written, and each value is read once.
#pragma once

#include "encode.hpp"
#include "message.hpp"

namespace dtf {

// Views of the arrays of a column: bytes of numbers, or of values with their splits.
struct MessageValues {
    const std::uint8_t* data = nullptr;
    std::size_t size = 0;
    std::optional<Splits> value_splits;
};

// Bytes that are written from the end to the begin.
class BackwardBytes {
public:
    std::size_t size() const { return memory_.size() - begin_; }
    const std::uint8_t* data() const { return memory_.data() + begin_; }
    void clear() { begin_ = memory_.size(); }
    // Remove the n bytes that were written last.
    void drop(std::size_t n) { begin_ += n; }

    // Place for n bytes before the others, with `slack` bytes before them that may be overwritten.
    DTF_INLINE std::uint8_t* before(std::size_t n) {
        if (n + slack > begin_) grow(n + slack);
        begin_ -= n;
        return memory_.data() + begin_;
    }

    DTF_INLINE void put(const std::uint8_t* from, std::size_t n) {
        std::uint8_t* place = before(n);
        if (n > 0) std::memcpy(place, from, n);
    }

    DTF_INLINE void put_varint(std::uint64_t value) {
        if (value < 0x80) {
            *before(1) = static_cast<std::uint8_t>(value);
        } else if (value >> 56 != 0) {
            std::uint8_t bytes[slack];
            put(bytes, static_cast<std::size_t>(put_long_varint(bytes, value) - bytes));
        } else {
            const std::size_t n = varint_size(value);
            const std::uint64_t more = 0x8080808080808080u & ((std::uint64_t{1} << (8 * (n - 1))) - 1);
            const std::uint64_t bytes = (spread(value) | more) << (8 * (8 - n));
            std::memcpy(before(n) + n - sizeof bytes, &bytes, sizeof bytes);
        }
    }

private:
    DTF_APART void grow(std::size_t n) {
        const std::size_t used = size();
        std::vector<std::uint8_t> larger(std::max<std::size_t>(2 * memory_.size(), 2 * (used + n) + 1024));
        if (used > 0) std::memcpy(larger.data() + larger.size() - used, data(), used);
        memory_.swap(larger);
        begin_ = memory_.size() - used;
    }

    std::vector<std::uint8_t> memory_;
    std::size_t begin_ = 0;
};

class MessageEncoder {
public:
    // Copies the splits that it validates. Values are read in place.
    MessageEncoder(std::vector<MessageTable> tables, const std::vector<MessageValues>& columns,
                   const std::vector<Splits>& splits, std::size_t rows)
        : rows_(rows), specs_(std::move(tables)), tables_(specs_.size()) {
        check_tables(specs_, columns.size(), splits.size());
        tables_[0].rows = rows;
        for (std::size_t i = 0; i < specs_.size(); ++i) compile(i, columns, splits);
        // Messages follow the message that holds them.
        for (auto table = tables_.rbegin(); table != tables_.rend(); ++table) {
            for (const Put& put : table->puts) {
                table->requires_fields |= put.field->required || (put.table != nullptr && put.table->requires_fields);
            }
        }
    }

    MessageEncoder(const MessageEncoder&) = delete;  // parts refer to each other
    MessageEncoder& operator=(const MessageEncoder&) = delete;

    // Write records from row `first` on while they fit in `capacity` bytes.
    Encoded encode(std::size_t first, std::uint8_t* out, std::size_t capacity) {
        const auto size = [this](std::size_t row) {
            bytes_.clear();
            row_ = row;
            put_message(tables_[0], row);
            return bytes_.size();
        };
        return put_records(first, rows_, out, capacity, size, [this](std::uint8_t* at, std::size_t) {
            if (bytes_.size() > 0) std::memcpy(at, bytes_.data(), bytes_.size());
        });
    }

private:
    struct Table;

    // A field and its arrays.
    struct Put {
        const MessageField* field = nullptr;
        std::uint32_t tag = 0, end_tag = 0, packed_tag = 0;
        std::size_t width = 0;
        std::string blank;                      // the number that is not written
        bool always = false;                    // written even if it is the default
        bool text = false;                      // bytes values, or messages that are bytes
        const std::uint8_t* values = nullptr;   // null if there is no column
        const std::uint8_t* presence = nullptr;
        const std::uint8_t* set = nullptr;      // number of the member of the oneof that is set
        std::vector<std::int64_t> value_splits, splits;
        Table* table = nullptr;
    };

    struct Table {
        std::size_t rows = 0;
        bool entry = false;            // of a map
        bool requires_fields = false;  // also in messages below
        std::vector<Put> puts;
    };

    void compile(std::size_t index, const std::vector<MessageValues>& columns, const std::vector<Splits>& splits) {
        const MessageTable& spec = specs_[index];
        Table& table = tables_[index];
        for (const MessageField& field : spec.fields) {
            // An entry of a map has a value, even if it is a message without fields.
            const bool empty = table.entry && is_message(field.type);
            if (field.column < 0 && field.message < 0 && field.presence < 0 && !empty) continue;
            Put put;
            if (field.column >= 0 && field.message >= 0 && has_outputs(specs_[static_cast<std::size_t>(field.message)])) {
                throw std::invalid_argument("a message is written from bytes or from a table, not both");
            }
            put.field = &field;
            put.tag = tag_of(field.number, wire_type_of(field.type));
            put.packed_tag = length_delimited(field.number);
            put.end_tag = tag_of(field.number, WireType::end_group);
            put.text = is_bytes(field);
            put.width = width_of(field.type);
            put.blank = field.default_value;
            if (!put.text && put.blank.empty()) put.blank.assign(put.width, '\0');
            put.always = field.required || table.entry;
            std::size_t rows = table.rows;
            if (field.presence >= 0) put.presence = numbers(columns, field.presence, rows, 1);
            const int set = field.oneof >= 0 ? spec.oneofs[static_cast<std::size_t>(field.oneof)] : -1;
            if (set >= 0) put.set = numbers(columns, set, rows, 4);
            if (field.repeated) {
                if (field.splits < 0) throw std::invalid_argument("a repeated field needs splits");
                rows = copy_splits(splits[static_cast<std::size_t>(field.splits)], rows, 1, put.splits);
            }
            if (field.column >= 0 && put.text) {
                const MessageValues& column = columns[static_cast<std::size_t>(field.column)];
                if (!column.value_splits) throw std::invalid_argument("bytes values need value_splits");
                const std::size_t size = copy_splits(column.value_splits, rows, 1, put.value_splits);
                if (size > column.size) throw std::invalid_argument("the splits exceed the values");
                put.values = column.size == 0 ? &nothing_ : column.data;
            } else if (field.column >= 0) {
                put.values = numbers(columns, field.column, rows, put.width);
            }
            if (field.message >= 0 && field.column < 0) {
                put.table = &tables_[static_cast<std::size_t>(field.message)];
                put.table->rows = rows;
                put.table->entry = field.is_map;
            }
            table.puts.push_back(std::move(put));
        }
    }

    static bool has_outputs(const MessageTable& table) {
        return std::any_of(table.fields.begin(), table.fields.end(), [](const MessageField& field) {
            return field.column >= 0 || field.presence >= 0 || field.message >= 0;
        });
    }

    const std::uint8_t* numbers(const std::vector<MessageValues>& columns, int index, std::size_t rows,
                                std::size_t width) const {
        const MessageValues& column = columns[static_cast<std::size_t>(index)];
        if (column.value_splits) throw std::invalid_argument("numbers cannot have value_splits");
        if (rows > most_values || column.size < rows * width) {
            throw std::invalid_argument("a column has fewer values than its rows");
        }
        return column.size == 0 ? &nothing_ : column.data;
    }

    // ---- writing, from the last field to the first

    void put_message(const Table& table, std::size_t row) {
        for (auto put = table.puts.rbegin(); put != table.puts.rend(); ++put) {
            if (!put->field->repeated) {
                put_one(*put, row);
            } else if (put->field->is_map && put->table != nullptr) {
                put_map(*put, row);
            } else {
                put_all(*put, row);
            }
        }
    }

    void put_one(const Put& put, std::size_t row) {
        const bool known = put.presence != nullptr || put.set != nullptr;
        if (put.presence != nullptr && put.presence[row] == 0) return;
        if (put.presence == nullptr && put.set != nullptr && load<std::uint32_t>(put.set + 4 * row) != put.field->number) {
            return;
        }
        if (put.table != nullptr || is_message(put.field->type)) {
            put_item(put, row, known || put.always);
        } else if (put.values != nullptr && (known || put.always || !is_default(put, row))) {
            put_item(put, row, true);
        }
    }

    static bool is_default(const Put& put, std::size_t row) {
        if (!put.text) return std::memcmp(put.values + row * put.width, put.blank.data(), put.width) == 0;
        const std::string_view value = text(put, row);
        return value == put.blank;
    }

    // Compare all fields of a message with those of a message that is not set.
    static bool is_unset(const Table& table, std::size_t row) {
        return std::all_of(table.puts.begin(), table.puts.end(), [&](const Put& put) {
            if (put.field->repeated) return put.splits[row] == put.splits[row + 1];
            if (put.presence != nullptr) return put.presence[row] == 0;
            if (put.set != nullptr) return load<std::uint32_t>(put.set + 4 * row) != put.field->number;
            if (put.table != nullptr) return is_unset(*put.table, row);
            return put.values == nullptr || is_default(put, row);
        });
    }

    static std::string_view text(const Put& put, std::size_t row) {
        const std::int64_t begin = put.value_splits[row], end = put.value_splits[row + 1];
        return {reinterpret_cast<const char*>(put.values + begin), static_cast<std::size_t>(end - begin)};
    }

    // A value or message with its tag; an empty message only if `even_empty`.
    void put_item(const Put& put, std::size_t row, bool even_empty) {
        if (put.table == nullptr && !put.text) {
            put_number(put, row);
            bytes_.put_varint(put.tag);
            return;
        }
        if (put.table != nullptr && put.table->requires_fields && !even_empty && is_unset(*put.table, row)) return;
        const bool group = put.field->type == FieldType::group;
        if (group) bytes_.put_varint(put.end_tag);
        const std::size_t end = bytes_.size();
        if (put.table != nullptr) {
            put_message(*put.table, row);
        } else if (put.values != nullptr) {
            const std::string_view value = text(put, row);
            const auto* data = reinterpret_cast<const std::uint8_t*>(value.data());
            if (put.field->utf8 && !is_utf8(data, value.size())) {
                throw std::invalid_argument("row " + std::to_string(row_) + ": field " +
                                            std::to_string(put.field->number) + " expects UTF-8, found other bytes");
            }
            bytes_.put(data, value.size());
        }
        const std::size_t size = bytes_.size() - end;
        if (size == 0 && !even_empty) {
            if (group) bytes_.drop(varint_size(put.end_tag));
            return;
        }
        if (!group) bytes_.put_varint(size);
        bytes_.put_varint(put.tag);
    }

    void put_all(const Put& put, std::size_t row) {
        const auto begin = static_cast<std::size_t>(put.splits[row]), end = static_cast<std::size_t>(put.splits[row + 1]);
        if (begin == end || (put.values == nullptr && put.table == nullptr)) return;
        if (!put.field->packed || put.text) {
            for (std::size_t item = end; item > begin; --item) put_item(put, item - 1, true);
            return;
        }
        const std::size_t before = bytes_.size();
        if (wire_type_of(put.field->type) == WireType::varint) {
            for (std::size_t item = end; item > begin; --item) put_number(put, item - 1);
        } else {
            bytes_.put(put.values + begin * put.width, (end - begin) * put.width);
        }
        bytes_.put_varint(bytes_.size() - before);
        bytes_.put_varint(put.packed_tag);
    }

    void put_number(const Put& put, std::size_t row) {
        const std::uint8_t* value = put.values + row * put.width;
        switch (put.field->type) {
            case FieldType::int64:
            case FieldType::uint64: return bytes_.put_varint(load<std::uint64_t>(value));
            case FieldType::int32:
            case FieldType::enumeration:
                return bytes_.put_varint(static_cast<std::uint64_t>(std::int64_t{load<std::int32_t>(value)}));
            case FieldType::uint32: return bytes_.put_varint(load<std::uint32_t>(value));
            case FieldType::boolean: return bytes_.put_varint(*value != 0);
            case FieldType::sint32: {
                const auto bits = load<std::uint32_t>(value);
                return bytes_.put_varint(bits << 1 ^ (0u - (bits >> 31)));
            }
            case FieldType::sint64: {
                const auto bits = load<std::uint64_t>(value);
                return bytes_.put_varint(bits << 1 ^ (std::uint64_t{0} - (bits >> 63)));
            }
            default: return bytes_.put(value, put.width);
        }
    }

    // ---- maps

    void put_map(const Put& put, std::size_t row) {
        const auto begin = static_cast<std::size_t>(put.splits[row]), end = static_cast<std::size_t>(put.splits[row + 1]);
        std::vector<std::size_t> order(end - begin);
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = begin + i;
        const Put& key = key_of(put);
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return precedes(key, a, b); });
        for (std::size_t i = order.size(); i > 0; --i) put_item(put, order[i - 1], true);
    }

    static const Put& key_of(const Put& map) {
        for (const Put& put : map.table->puts) {
            if (put.field->number == 1 && put.values != nullptr) return put;
        }
        throw std::invalid_argument("a map needs a column of its keys");
    }

    // The order of upb: integers descend as if unsigned, text ascends, where the end of a text is after all bytes.
    static bool precedes(const Put& key, std::size_t a, std::size_t b) {
        if (key.text) {
            const std::string_view one = text(key, a), other = text(key, b);
            const std::size_t common = std::min(one.size(), other.size());
            const int order = one.substr(0, common).compare(other.substr(0, common));
            return order != 0 ? order < 0 : one.size() > other.size();
        }
        if (key.width == 8) return number<std::uint64_t>(key, a) > number<std::uint64_t>(key, b);
        if (key.width == 4) return number<std::uint32_t>(key, a) > number<std::uint32_t>(key, b);
        return number<std::uint8_t>(key, a) > number<std::uint8_t>(key, b);
    }

    template <class T>
    static T number(const Put& put, std::size_t row) {
        return load<T>(put.values + row * sizeof(T));
    }

    static constexpr std::uint8_t nothing_ = 0;

    std::size_t rows_;
    std::vector<MessageTable> specs_;
    std::vector<Table> tables_;
    BackwardBytes bytes_;   // of the message
    std::size_t row_ = 0;
};

}  // namespace dtf
