// Field tables of any protobuf message: what the decoder (message_decode.hpp) and the encoder (message_encode.hpp) know
// of a message type.
//
// A message type is a tree of tables, unrolled: each table describes one place in the tree. Fields of singular messages
// have one value for each item of the nearest repeated message around them, or for each record. These values, and the
// items of repeated fields, are columns.
//
// Specification: https://protobuf.dev/programming-guides/encoding/ and
// https://github.com/protocolbuffers/protobuf/blob/main/src/google/protobuf/descriptor.proto
#pragma once

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cursor.hpp"

namespace dtf {

// Numbers of FieldDescriptorProto.Type.
enum class FieldType : int {
    float64 = 1,
    float32 = 2,
    int64 = 3,
    uint64 = 4,
    int32 = 5,
    fixed64 = 6,
    fixed32 = 7,
    boolean = 8,
    string = 9,
    group = 10,
    message = 11,
    bytes = 12,
    uint32 = 13,
    enumeration = 14,
    sfixed32 = 15,
    sfixed64 = 16,
    sint32 = 17,
    sint64 = 18,
};

constexpr std::uint32_t most_number = (1u << 29) - 1;

struct MessageField {
    std::uint32_t number = 0;
    FieldType type = FieldType::int32;
    bool repeated = false;
    bool packed = false;    // the encoder packs the items
    bool required = false;  // the encoder writes the default too
    int column = -1;        // output of the values, or of the bytes of a message
    int message = -1;       // table of a message whose fields are wanted
    int splits = -1;        // output of the splits of a repeated field
    int presence = -1;      // output of the presence
    int oneof = -1;         // index in the table
    std::string default_value;  // as stored; empty: zeros
    bool utf8 = false;          // strings are checked
    bool is_map = false;        // of the entries, the last one of a key remains
    std::optional<std::vector<std::int32_t>> numbers;  // ascending numbers of a closed enum
};

struct MessageTable {
    std::vector<MessageField> fields;
    std::vector<int> oneofs;  // output of the number of the field that is set, or -1
};

inline bool is_message(FieldType type) { return type == FieldType::message || type == FieldType::group; }

inline bool is_bytes(const MessageField& field) {
    return field.type == FieldType::string || field.type == FieldType::bytes || is_message(field.type);
}

// Bytes of a stored number.
inline std::size_t width_of(FieldType type) {
    switch (type) {
        case FieldType::float64:
        case FieldType::int64:
        case FieldType::uint64:
        case FieldType::fixed64:
        case FieldType::sfixed64:
        case FieldType::sint64: return 8;
        case FieldType::boolean: return 1;
        default: return 4;
    }
}

inline WireType wire_type_of(FieldType type) {
    switch (type) {
        case FieldType::float64:
        case FieldType::fixed64:
        case FieldType::sfixed64: return WireType::fixed64;
        case FieldType::float32:
        case FieldType::fixed32:
        case FieldType::sfixed32: return WireType::fixed32;
        case FieldType::string:
        case FieldType::bytes:
        case FieldType::message: return WireType::delimited;
        case FieldType::group: return WireType::group;
        default: return WireType::varint;
    }
}

inline void check_field(const MessageField& field, std::size_t noneofs) {
    if (field.number == 0 || field.number > most_number) throw std::invalid_argument("a field number is out of range");
    const auto type = static_cast<int>(field.type);
    if (type < 1 || type > 18) throw std::invalid_argument("a field has an unknown type");
    if (field.message >= 0 && !is_message(field.type)) throw std::invalid_argument("only messages have a table");
    if (field.splits >= 0 && !field.repeated) throw std::invalid_argument("only repeated fields have splits");
    if (field.presence >= 0 && field.repeated) throw std::invalid_argument("repeated fields have no presence");
    if (field.oneof >= 0 && field.repeated) throw std::invalid_argument("repeated fields are in no oneof");
    if (field.oneof >= static_cast<int>(noneofs)) throw std::invalid_argument("a oneof index is out of range");
    if (field.is_map && !(field.repeated && field.type == FieldType::message)) {
        throw std::invalid_argument("only repeated messages are maps");
    }
    if (!is_bytes(field) && !field.default_value.empty() && field.default_value.size() != width_of(field.type)) {
        throw std::invalid_argument("a default has another size than its type");
    }
    if (field.numbers && field.type != FieldType::enumeration) throw std::invalid_argument("only enums have numbers");
    if (field.numbers && !std::is_sorted(field.numbers->begin(), field.numbers->end())) {
        throw std::invalid_argument("the numbers of an enum must ascend");
    }
}

// Throws unless the tables are a tree whose root is the first, each output has one field, and no index is out of range.
inline void check_tables(const std::vector<MessageTable>& tables, std::size_t ncolumns, std::size_t nsplits) {
    std::vector<bool> columns(ncolumns), splits(nsplits), places(tables.size());
    const auto use = [](std::vector<bool>& used, int index, const char* error) {
        if (index < 0) return;
        const auto at = static_cast<std::size_t>(index);
        if (at >= used.size() || used[at]) throw std::invalid_argument(error);
        used[at] = true;
    };
    if (tables.empty()) throw std::invalid_argument("a message needs a table");
    places[0] = true;
    for (std::size_t i = 0; i < tables.size(); ++i) {
        if (!places[i]) throw std::invalid_argument("a table must precede the tables of its messages");
        std::vector<std::uint32_t> numbers;
        for (const MessageField& field : tables[i].fields) {
            check_field(field, tables[i].oneofs.size());
            use(columns, field.column, "a column index is used twice or out of range");
            use(columns, field.presence, "a column index is used twice or out of range");
            use(splits, field.splits, "an index of splits is used twice or out of range");
            use(places, field.message, "an index of a table is used twice or out of range");
            numbers.push_back(field.number);
        }
        for (const int column : tables[i].oneofs) use(columns, column, "a column index is used twice or out of range");
        std::sort(numbers.begin(), numbers.end());
        if (std::adjacent_find(numbers.begin(), numbers.end()) != numbers.end()) {
            throw std::invalid_argument("two fields of a table have the same number");
        }
    }
    const auto all = [](const std::vector<bool>& used) { return std::find(used.begin(), used.end(), false) == used.end(); };
    if (!all(columns) || !all(splits)) throw std::invalid_argument("an output has no field");
    for (const MessageTable& table : tables) {
        for (const MessageField& field : table.fields) {
            if (!field.is_map || field.message < 0) continue;
            const std::vector<MessageField>& entry = tables[static_cast<std::size_t>(field.message)].fields;
            const bool keyed = std::any_of(entry.begin(), entry.end(), [](const MessageField& one) {
                return one.number == 1 && !one.repeated && !is_message(one.type);
            });
            if (!keyed) throw std::invalid_argument("the table of a map needs the key, field 1");
        }
    }
}

}  // namespace dtf
