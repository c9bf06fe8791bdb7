// Fuzzing of messages of any type: records made by the tables, mutated, decoded in several ways that have to agree.
#pragma once

#include <functional>

#include "fuzzing.hpp"
#include "message_support.hpp"

namespace fuzzing {

using dtf::Fault;
using dtf::Stop;

// A type as proto3 has them: fields without presence, packed numbers, open enums, maps, a oneof.
inline MessageTables proto3_tables() {
    MessageTables made;
    const int root = made.add_table();
    made.add(root, 1, FieldType::int32);
    made.add(root, 2, FieldType::string).utf8 = true;
    made.add_many(root, 3, FieldType::int64, true);
    const int one = made.add_message(root, 4);
    made.add(one, 1, FieldType::sint64);
    made.add(one, 2, FieldType::bytes);
    made.add_many(one, 3, FieldType::boolean, true);
    const int many = made.add_messages(root, 5);
    made.with_presence(made.add(many, 1, FieldType::fixed32));
    made.add_many(many, 2, FieldType::string).utf8 = true;
    const int inner = made.add_messages(many, 3);
    made.add(inner, 1, FieldType::uint64);
    made.add_many(inner, 2, FieldType::float32, true);
    made.add_map(root, 6, FieldType::string, FieldType::int32);
    const int choice = made.add_oneof(root);
    made.add(root, 7, FieldType::float64).oneof = choice;
    MessageField& word = made.add(root, 8, FieldType::string);
    word.oneof = choice;
    word.utf8 = true;
    const int chosen = made.add_message(root, 9, FieldType::message, true, choice);
    made.add_many(chosen, 1, FieldType::sint32, true);
    made.add(chosen, 2, FieldType::int32).oneof = made.add_oneof(chosen);
    made.add(root, 10, FieldType::message);
    made.add_many(root, 11, FieldType::message);
    made.add_many(root, 2000, FieldType::enumeration, true);
    return made;
}

// A level of a recursive type: groups, closed enums, defaults, required fields, and itself to a depth.
inline void add_proto2_level(MessageTables& made, int table, int depth) {
    const std::vector<std::int32_t> numbers{-3, 0, 1, 2}, sparse{0, 5, 1000};
    made.add(table, 1, FieldType::int32).required = true;
    MessageField& choice = made.with_presence(made.add(table, 2, FieldType::enumeration));
    choice.numbers = numbers;
    choice.default_value = little_endian(std::int32_t{-3});
    made.add_many(table, 3, FieldType::enumeration, depth == 1).numbers = sparse;
    made.with_presence(made.add(table, 4, FieldType::bytes)).default_value = "abc";
    const int group = made.add_message(table, 5, FieldType::group, true);
    made.with_presence(made.add(group, 1, FieldType::sint32)).default_value = little_endian(std::int32_t{7});
    made.add_many(group, 2, FieldType::fixed64);
    const int oneof = made.add_oneof(table);
    made.add(table, 6, FieldType::uint32).oneof = oneof;
    const int member = made.add_message(table, 7, FieldType::group, true, oneof);
    made.add_many(member, 1, FieldType::uint32);
    made.add_map(member, 2, FieldType::boolean, FieldType::bytes);
    const int map = made.add_map(table, 8, FieldType::sint32, FieldType::message);
    const int entry = made.add_message(map, 2);
    made.add_many(entry, 1, FieldType::bytes);
    const int value = made.add_message(entry, 2, FieldType::message, true);
    made.add(value, 1, FieldType::sfixed64);
    const int closed = made.add_messages(table, 9, FieldType::message, true);
    made.add(closed, 1, FieldType::uint64);
    made.add(closed, 2, FieldType::enumeration).numbers = numbers;
    made.add_many(table, 10, FieldType::group);
    if (depth == 0) {
        made.with_presence(made.add(table, 11, FieldType::message));
        made.add_many(table, 12, FieldType::group);
        return;
    }
    add_proto2_level(made, made.add_message(table, 11, FieldType::message, true), depth - 1);
    add_proto2_level(made, made.add_messages(table, 12, FieldType::group), depth - 1);
}

inline MessageTables proto2_tables() {
    MessageTables made;
    add_proto2_level(made, made.add_table(), 1);
    return made;
}

// Read the bytes of messages beside their fields.
inline MessageTables with_bytes(MessageTables made) {
    for (MessageTable& table : made.tables) {
        for (MessageField& field : table.fields) {
            if (field.column < 0 && field.message >= 0) field.column = static_cast<int>(made.ncolumns++);
        }
    }
    return made;
}

inline std::string some_number(FieldType type, Random& random) {
    switch (dtf::wire_type_of(type)) {
        case dtf::WireType::fixed64: return little_endian(random.next());
        case dtf::WireType::fixed32: return little_endian(static_cast<std::uint32_t>(random.next()));
        default: return varint(random.below(3) == 0 ? random.next() >> random.below(64) : random.below(4));
    }
}

inline std::string some_text(Random& random) {
    static constexpr const char* texts[] = {"", "a", "b", "k\xc3\xa9", "a longer text of ASCII, beyond 32 bytes"};
    return random.below(60) == 0 ? "\xff" : texts[random.below(std::size(texts))];
}

inline std::string some_message(const MessageTables& made, std::size_t table, Random& random);

inline std::string some_field(const MessageTables& made, const MessageField& field, Random& random) {
    const auto wire_type = static_cast<std::uint32_t>(dtf::wire_type_of(field.type));
    if (!dtf::is_bytes(field)) {
        if (!field.repeated || random.below(2) == 0) return tag(field.number, wire_type) + some_number(field.type, random);
        std::string packed;
        for (std::size_t n = random.below(random.below(30) == 0 ? 700 : 5); n > 0; --n) {
            packed += some_number(field.type, random);
        }
        return delimited(field.number, packed);
    }
    if (!dtf::is_message(field.type)) return delimited(field.number, some_text(random));
    const bool known = field.message >= 0;
    const std::string content = known ? some_message(made, static_cast<std::size_t>(field.message), random) : tag(1, 0) + "a";
    if (field.type == FieldType::message) return delimited(field.number, content);
    return tag(field.number, 3) + content + tag(field.number, 4);
}

// Fields of a table, in any order, some more than once.
inline std::string some_message(const MessageTables& made, std::size_t table, Random& random) {
    const std::vector<MessageField>& fields = made.tables[table].fields;
    std::string message;
    if (fields.empty()) return message;
    for (std::size_t n = random.below(fields.size() + 3); n > 0; --n) {
        message += some_field(made, fields[random.below(fields.size())], random);
    }
    return message;
}

inline std::string said_of(const dtf::MessageProblem& problem) {
    std::string said = std::to_string(static_cast<int>(problem.fault));
    for (const int number : {problem.table, problem.field, problem.column}) said += ' ' + std::to_string(number);
    said += ' ' + std::to_string(problem.number) + ' ' + std::to_string(problem.offset);
    return said + ' ' + problem.expected + ", " + problem.found + '\n';
}

// Outcome of a block: problems as text, and the accepted records.
struct MessageOutcome {
    std::string said, accepted;
    bool full = false;
};

inline void check_problem(const MessageTables& made, const dtf::MessageProblem& problem, std::size_t size) {
    REQUIRE(problem.fault == Fault::malformed || problem.fault == Fault::utf8 || problem.fault == Fault::full);
    REQUIRE(problem.offset <= size && problem.table < static_cast<int>(made.tables.size()));
    REQUIRE(problem.column < static_cast<int>(made.ncolumns));
    if (problem.fault == Fault::full) return;
    REQUIRE(problem.table >= 0 && !problem.expected.empty() && !problem.found.empty());
    const auto fields = made.tables[static_cast<std::size_t>(problem.table)].fields.size();
    REQUIRE(problem.field < static_cast<int>(fields));
}

// Feeds whole records a few at a time; goes on after those that are refused, but not after a full output.
inline MessageOutcome feed(const MessageTables& made, MessageDecoder& decoder, const std::string& bytes,
                           const std::function<std::uint64_t()>& limit) {
    MessageOutcome outcome;
    std::size_t at = 0;
    while (at < bytes.size() && !outcome.full) {
        const Exact block(std::string_view(bytes).substr(at));
        const std::uint64_t most = limit();
        const dtf::Walk walk = decoder.feed(block.data(), block.size(), most);
        REQUIRE(walk.records <= most && walk.consumed <= block.size());
        const auto consumed = static_cast<std::size_t>(walk.consumed);
        outcome.accepted += bytes.substr(at, consumed);
        at += consumed;
        if (walk.stop != Stop::feature) continue;
        const auto size = static_cast<std::size_t>(dtf::load<std::uint64_t>(bytes_of(bytes) + at));
        check_problem(made, decoder.problem(), size);
        outcome.full = decoder.problem().fault == Fault::full;
        outcome.said += std::to_string(at) + ' ' + said_of(decoder.problem());
        at += 16 + size;
    }
    return outcome;
}

inline void check_message_splits(const std::vector<std::int64_t>& splits, std::size_t groups, std::size_t last) {
    REQUIRE(splits.size() == groups + 1 && splits.front() == 0 && std::is_sorted(splits.begin(), splits.end()));
    REQUIRE(static_cast<std::size_t>(splits.back()) == last);
}

inline std::size_t index_of(int index) { return static_cast<std::size_t>(index); }

// Values of one field match its rows.
inline void check_values(const MessageField& field, const MessageArrays& arrays, std::size_t rows, std::size_t input) {
    const std::size_t column = index_of(field.column);
    const std::string& values = arrays.values[column];
    if (dtf::is_bytes(field)) {
        check_message_splits(*arrays.value_splits[column], rows, values.size());
        REQUIRE(values.size() <= input + rows * field.default_value.size());
        for (const std::string& value : field.utf8 ? arrays.texts(column) : std::vector<std::string>()) {
            REQUIRE(dtf::is_utf8(bytes_of(value), value.size()));
        }
        return;
    }
    REQUIRE(!arrays.value_splits[column] && values.size() == rows * dtf::width_of(field.type));
    if (field.type == FieldType::boolean) {
        REQUIRE(std::all_of(values.begin(), values.end(), [](char byte) { return byte == 0 || byte == 1; }));
    }
    if (!field.numbers) return;
    for (const auto number : arrays.numbers<std::int32_t>(column)) {
        const bool blank = !field.repeated && number == 0;
        REQUIRE(blank || std::binary_search(field.numbers->begin(), field.numbers->end(), number));
    }
}

// Presence is 0 or 1, and agrees with the oneof.
inline void check_presence(const MessageTable& table, const MessageField& field, const MessageArrays& arrays,
                           std::size_t rows) {
    const std::string& present = arrays.values[index_of(field.presence)];
    REQUIRE(present.size() == rows);
    REQUIRE(std::all_of(present.begin(), present.end(), [](char byte) { return byte == 0 || byte == 1; }));
    if (field.oneof < 0) return;
    const auto set = arrays.numbers<std::uint32_t>(index_of(table.oneofs[index_of(field.oneof)]));
    for (std::size_t row = 0; row < rows; ++row) REQUIRE((set[row] == field.number) == (present[row] == 1));
}

// Every array of the tables has the rows of its list; the lists together have no more items than the input has bytes.
inline void check_arrays(const MessageTables& made, const MessageArrays& arrays, std::size_t input) {
    std::vector<std::size_t> rows(made.tables.size());
    rows[0] = arrays.rows;
    std::size_t items = 0;
    for (std::size_t i = 0; i < made.tables.size(); ++i) {
        const MessageTable& table = made.tables[i];
        for (const int oneof : table.oneofs) {
            for (const auto number : arrays.numbers<std::uint32_t>(index_of(oneof))) {
                REQUIRE(number == 0 || std::any_of(table.fields.begin(), table.fields.end(), [&](const auto& field) {
                    return field.number == number && field.oneof >= 0;
                }));
            }
            REQUIRE(arrays.values[index_of(oneof)].size() == rows[i] * sizeof(std::uint32_t));
        }
        for (const MessageField& field : table.fields) {
            std::size_t of_field = rows[i];
            if (field.repeated) {
                const std::vector<std::int64_t>& splits = arrays.splits[index_of(field.splits)];
                REQUIRE(!splits.empty());
                of_field = static_cast<std::size_t>(splits.back());
                check_message_splits(splits, rows[i], of_field);
                items += of_field;
            }
            if (field.column >= 0) check_values(field, arrays, of_field, input);
            if (field.presence >= 0) check_presence(table, field, arrays, rows[i]);
            if (field.message >= 0) rows[index_of(field.message)] = of_field;
        }
    }
    REQUIRE(items <= input);
}

// Encoded records are read back: maps are sorted the first time, and nothing changes after that.
inline void check_encoded(const MessageTables& made, const MessageArrays& arrays, Random& random) {
    const auto all = [] { return UINT64_MAX; };
    const std::string once = encoded(made, arrays, random.below(2) == 0 ? 0 : random.below(2000));
    MessageDecoder again = made.decoder();
    REQUIRE(feed(made, again, once, all).said.empty() && again.unknown_fields() == 0);
    const MessageArrays decoded(again);
    REQUIRE(decoded.rows == arrays.rows && decoded.splits.size() == arrays.splits.size());
    for (std::size_t i = 0; i < arrays.splits.size(); ++i) REQUIRE(decoded.splits[i].back() == arrays.splits[i].back());
    for (std::size_t i = 0; i < arrays.values.size(); ++i) {
        REQUIRE(decoded.values[i].size() == arrays.values[i].size());
    }
    const bool maps = std::any_of(made.tables.begin(), made.tables.end(), [](const MessageTable& table) {
        return std::any_of(table.fields.begin(), table.fields.end(), [](const auto& field) { return field.is_map; });
    });
    REQUIRE(maps || decoded == arrays);
    REQUIRE(encoded(made, decoded) == once);
}

// Columns that can be counted: some of those of bytes values and of repeated numbers.
inline std::vector<std::size_t> some_counted(const MessageTables& made, Random& random) {
    std::vector<std::size_t> counted;
    for (const MessageTable& table : made.tables) {
        for (const MessageField& field : table.fields) {
            const bool countable = field.column >= 0 && (dtf::is_bytes(field) || field.repeated);
            if (countable && random.below(2) == 0) counted.push_back(index_of(field.column));
        }
    }
    return counted;
}

// Memory of just the size of `rows` rows for dense columns, and of any size for others.
inline std::vector<Exact> lend(MessageDecoder& decoder, std::size_t rows, Random& random) {
    std::vector<Exact> lent;
    for (dtf::MessageColumn& column : decoder.columns()) {
        const bool dense = decoder.is_dense(column);
        if (column.counted || random.below(3) == 0) continue;
        lent.emplace_back(std::string(dense ? rows * column.width : random.below(200), '\0'));
        Exact& memory = lent.back();
        column.values() = dense ? dtf::Buffer(memory.data(), memory.size())
                                : dtf::Buffer::offered(memory.data(), memory.size());
    }
    return lent;
}

// The first records of one decoder are those of another.
inline void check_prefix(const MessageArrays& part, const MessageArrays& whole) {
    REQUIRE(part.rows <= whole.rows);
    for (std::size_t i = 0; i < part.values.size(); ++i) {
        REQUIRE(whole.values[i].compare(0, part.values[i].size(), part.values[i]) == 0);
    }
    for (std::size_t i = 0; i < part.splits.size(); ++i) {
        REQUIRE(std::equal(part.splits[i].begin(), part.splits[i].end(), whole.splits[i].begin()));
    }
}

// Some of the outputs of tables, and the output of all that each of them is.
struct SomeOutputs {
    MessageTables made;
    std::vector<int> columns;

    SomeOutputs(const MessageTables& all, Random& random) : made(all) {
        made.ncolumns = 0;
        const auto keep = [&](int& column) {
            if (column < 0) return;
            if (random.below(2) == 0) {
                column = -1;
                return;
            }
            columns.push_back(column);
            column = static_cast<int>(made.ncolumns++);
        };
        for (MessageTable& table : made.tables) {
            for (MessageField& field : table.fields) {
                keep(field.column);
                keep(field.presence);
            }
            for (int& oneof : table.oneofs) keep(oneof);
        }
    }
};

// Values do not depend on the other outputs.
inline void check_some(const MessageTables& made, const MessageArrays& arrays, const std::string& accepted, Random& random) {
    const SomeOutputs some(made, random);
    MessageDecoder decoder = some.made.decoder();
    REQUIRE(feed(some.made, decoder, accepted, [] { return UINT64_MAX; }).said.empty());
    const MessageArrays found(decoder);
    REQUIRE(found.splits == arrays.splits);
    for (std::size_t i = 0; i < some.columns.size(); ++i) {
        REQUIRE(found.values[i] == arrays.values[index_of(some.columns[i])]);
        REQUIRE(found.value_splits[i] == arrays.value_splits[index_of(some.columns[i])]);
    }
}

inline void check_messages(const MessageTables& made, const std::string& bytes, bool written, Random& random) {
    const auto all = [] { return UINT64_MAX; };
    const auto few = [&]() -> std::uint64_t { return 1 + random.below(3); };
    MessageDecoder decoder = made.decoder();
    const MessageOutcome once = feed(made, decoder, bytes, all);
    REQUIRE(!once.full);
    const MessageArrays arrays(decoder);
    check_arrays(made, arrays, bytes.size());
    if (written) check_encoded(made, arrays, random);
    check_some(made, arrays, once.accepted, random);

    // Records that are refused leave nothing behind.
    MessageDecoder without = made.decoder();
    REQUIRE(feed(made, without, once.accepted, all).said.empty());
    REQUIRE(MessageArrays(without) == arrays && without.unknown_fields() == decoder.unknown_fields());

    // In memory with place for one record more, which those that are refused write to.
    MessageDecoder lending = made.decoder();
    const std::vector<Exact> memory = lend(lending, arrays.rows + 1, random);
    REQUIRE(feed(made, lending, bytes, few).said == once.said);
    REQUIRE(MessageArrays(lending) == arrays && lending.unknown_fields() == decoder.unknown_fields());

    MessageDecoder counter = made.decoder(some_counted(made, random));
    REQUIRE(feed(made, counter, bytes, few).said == once.said);
    const MessageArrays counted(counter);
    REQUIRE(counted.splits == arrays.splits && counted.value_splits == arrays.value_splits);
    REQUIRE(counter.unknown_fields() == decoder.unknown_fields());

    // With less memory than it takes.
    MessageDecoder limited = made.decoder();
    const std::size_t most = random.below(2000);
    limited.set_memory_limit(most);
    const MessageOutcome part = feed(made, limited, bytes, few);
    REQUIRE(part.full || part.said == once.said);
    for (dtf::MessageColumn& column : limited.columns()) REQUIRE(column.bytes || column.slots.size() <= most);
    const MessageArrays begun(limited);
    for (const std::string& values : begun.values) REQUIRE(values.size() <= most);
    check_prefix(begun, arrays);
}

inline void fuzz_messages(const std::string& foreign, Random& random) {
    static const MessageTables types[] = {proto3_tables(), proto2_tables(), with_bytes(proto3_tables()),
                                          with_bytes(proto2_tables())};
    const std::size_t type = random.below(std::size(types));
    const MessageTables& made = types[type];
    const MessageTables& other = types[random.below(std::size(types))];
    std::string bytes;
    for (std::size_t n = 1 + random.below(6); n > 0 && bytes.size() < 20000; --n) {
        std::string payload = random.below(30) == 0 ? foreign : some_message(made, 0, random);
        const std::string more = some_message(other, 0, random);
        for (std::size_t k = random.below(2) == 0 ? 0 : 1 + random.below(3); k > 0; --k) mutate(payload, more, random);
        if (random.below(4) == 0) payload += some_message(made, 0, random);  // messages merge
        bytes += framed(payload);
    }
    check_messages(made, bytes, type < 2, random);
}

}  // namespace fuzzing
