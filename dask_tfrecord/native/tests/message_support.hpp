// Shared by the message tests and the fuzzer: tables with their outputs numbered, their columns, and the way back.
#pragma once

#include <optional>

#include "message_decode.hpp"
#include "message_encode.hpp"
#include "support.hpp"

namespace support {

using dtf::FieldType;
using dtf::MessageDecoder;
using dtf::MessageField;
using dtf::MessageTable;

// Tables of a message type. Each field that is added gets the outputs it can have.
struct MessageTables {
    std::vector<MessageTable> tables;
    std::size_t ncolumns = 0;
    std::size_t nsplits = 0;

    int add_table() {
        tables.emplace_back();
        return static_cast<int>(tables.size() - 1);
    }

    // A oneof of a table with its output; the index in the table.
    int add_oneof(int table) {
        std::vector<int>& oneofs = at(table).oneofs;
        oneofs.push_back(next_column());
        return static_cast<int>(oneofs.size() - 1);
    }

    MessageField& add(int table, std::uint32_t number, FieldType type) {
        MessageField field;
        field.number = number;
        field.type = type;
        field.column = next_column();
        return put(table, field);
    }

    MessageField& add_many(int table, std::uint32_t number, FieldType type, bool packed = false) {
        MessageField& field = add(table, number, type);
        field.repeated = true;
        field.packed = packed;
        field.splits = next_splits();
        return field;
    }

    // A message with a table of its own, which is returned.
    int add_message(int table, std::uint32_t number, FieldType type = FieldType::message, bool present = false,
                    int oneof = -1) {
        MessageField field;
        field.number = number;
        field.type = type;
        field.message = add_table();
        field.oneof = oneof;
        if (present) field.presence = next_column();
        put(table, field);
        return field.message;
    }

    int add_messages(int table, std::uint32_t number, FieldType type = FieldType::message, bool is_map = false) {
        MessageField field;
        field.number = number;
        field.type = type;
        field.message = add_table();
        field.repeated = true;
        field.is_map = is_map;
        field.splits = next_splits();
        put(table, field);
        return field.message;
    }

    // A map to numbers or text; the table of its entries.
    int add_map(int table, std::uint32_t number, FieldType key, FieldType value) {
        const int entry = add_messages(table, number, FieldType::message, true);
        add(entry, 1, key);
        if (value != FieldType::message) add(entry, 2, value);
        return entry;
    }

    MessageField& with_presence(MessageField& field) {
        field.presence = next_column();
        return field;
    }

    MessageDecoder decoder(const std::vector<std::size_t>& counted = {}, bool check_crc = true) const {
        return MessageDecoder(tables, ncolumns, nsplits, check_crc, counted);
    }

private:
    MessageTable& at(int table) { return tables[static_cast<std::size_t>(table)]; }
    int next_column() { return static_cast<int>(ncolumns++); }
    int next_splits() { return static_cast<int>(nsplits++); }

    MessageField& put(int table, const MessageField& field) {
        at(table).fields.push_back(field);
        return at(table).fields.back();
    }
};

// Arrays of a decoder: the values of each column, splits of bytes values, and splits of repeated fields.
struct MessageArrays {
    std::vector<std::string> values;
    std::vector<std::optional<std::vector<std::int64_t>>> value_splits;
    std::vector<std::vector<std::int64_t>> splits;
    std::size_t rows = 0;

    explicit MessageArrays(MessageDecoder& decoder) : rows(decoder.root().rows) {
        for (dtf::MessageColumn& column : decoder.columns()) {
            if (!column.bytes) column.slots.truncate(column.list->rows * column.width);
            values.push_back(column.counted ? std::string() : text(column.values()));
            value_splits.emplace_back();
            if (column.bytes) value_splits.back() = items<std::int64_t>(column.value_splits);
        }
        for (dtf::MessageList* list : decoder.splits()) splits.push_back(items<std::int64_t>(list->splits));
    }

    bool operator==(const MessageArrays& other) const {
        return rows == other.rows && values == other.values && value_splits == other.value_splits &&
               splits == other.splits;
    }

    template <class T>
    std::vector<T> numbers(std::size_t column) const {
        std::vector<T> found(values[column].size() / sizeof(T));
        if (!found.empty()) std::memcpy(found.data(), values[column].data(), found.size() * sizeof(T));
        return found;
    }

    std::vector<std::string> texts(std::size_t column) const {
        std::vector<std::string> found;
        const std::vector<std::int64_t>& ends = *value_splits[column];
        for (std::size_t i = 1; i < ends.size(); ++i) {
            const auto begin = static_cast<std::size_t>(ends[i - 1]), end = static_cast<std::size_t>(ends[i]);
            found.push_back(values[column].substr(begin, end - begin));
        }
        return found;
    }
};

// The records that an encoder writes, into blocks of just the size that each needs, or of `capacity` bytes.
inline std::string encoded(const MessageTables& made, const MessageArrays& arrays, std::size_t capacity = 0) {
    std::vector<Exact> blocks;
    std::vector<dtf::MessageValues> columns;
    std::vector<dtf::Splits> splits;
    blocks.reserve(arrays.values.size());
    for (std::size_t i = 0; i < arrays.values.size(); ++i) {
        blocks.emplace_back(arrays.values[i]);
        columns.push_back({blocks.back().data(), blocks.back().size(), {}});
        if (!arrays.value_splits[i]) continue;
        columns.back().value_splits = dtf::Splits{arrays.value_splits[i]->data(), arrays.value_splits[i]->size()};
    }
    for (const std::vector<std::int64_t>& ends : arrays.splits) splits.push_back({ends.data(), ends.size()});
    dtf::MessageEncoder encoder(made.tables, columns, splits, arrays.rows);
    std::string all;
    for (std::size_t row = 0; row < arrays.rows;) {
        Exact block{std::string(capacity, '\0')};
        const dtf::Encoded done = encoder.encode(row, block.data(), block.size());
        all.append(reinterpret_cast<const char*>(block.data()), static_cast<std::size_t>(done.bytes));
        row += static_cast<std::size_t>(done.records);
        if (done.records == 0) capacity = static_cast<std::size_t>(done.need);
    }
    return all;
}

}  // namespace support
