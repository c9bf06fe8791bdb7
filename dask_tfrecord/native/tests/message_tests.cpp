// Tests of messages of any type: values of each kind of field, what merges and what replaces, refusals, and the way back.
#include <stdexcept>

#include "checks.hpp"
#include "message_support.hpp"

using dtf::Fault;
using dtf::FieldType;
using dtf::MessageDecoder;
using dtf::MessageField;
using support::delimited;
using support::little_endian;
using support::MessageArrays;
using support::MessageTables;
using support::tag;
using support::varint;

namespace {

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

std::string number(std::uint32_t field, std::uint64_t value) { return tag(field, 0) + varint(value); }

// Decode payloads one by one, from blocks of just their size; the number of those that are accepted.
std::size_t take(MessageDecoder& decoder, const Texts& payloads) {
    std::size_t accepted = 0;
    for (const std::string& payload : payloads) {
        const support::Exact block(payload);
        accepted += decoder.take(block.cursor()) ? 1 : 0;
    }
    return accepted;
}

void test_last_scalar_wins_and_absent_ones_have_the_default() {
    MessageTables made;
    const int root = made.add_table();
    made.with_presence(made.add(root, 1, FieldType::int32)).default_value = little_endian(std::int32_t{-7});
    made.add(root, 2, FieldType::sint64);
    made.add(root, 3000, FieldType::string).default_value = "none";
    MessageDecoder decoder = made.decoder();
    CHECK(take(decoder, {number(1, 1) + delimited(3000, "a") + number(1, 2) + delimited(3000, "bc"), "", number(2, 3)}) == 3);
    const MessageArrays arrays(decoder);
    CHECK(arrays.numbers<std::int32_t>(0) == Ints({2, -7, -7}));
    CHECK(arrays.values[1] == std::string("\1\0\0", 3));
    CHECK(arrays.numbers<std::int64_t>(2) == Longs({0, 0, -2}));
    CHECK(arrays.texts(3) == Texts({"bc", "none", "none"}));
}

void test_packed_and_unpacked_items_join() {
    MessageTables made;
    const int root = made.add_table();
    made.add_many(root, 1, FieldType::int32);
    made.add_many(root, 2, FieldType::fixed64, true);
    const std::string eight = little_endian(std::int64_t{8});
    MessageDecoder decoder = made.decoder(), counter = made.decoder({0, 1});
    const Texts payloads{number(1, 300) + delimited(1, varint(1) + varint(UINT64_MAX)) + tag(2, 1) + eight, "",
                         delimited(2, eight + eight) + number(1, 4)};
    for (MessageDecoder* each : {&decoder, &counter}) CHECK(take(*each, payloads) == 3);
    const MessageArrays arrays(decoder), counted(counter);
    CHECK(arrays.numbers<std::int32_t>(0) == Ints({300, 1, -1, 4}));
    CHECK(arrays.numbers<std::int64_t>(1) == Longs({8, 8, 8}));
    CHECK(arrays.splits[0] == Longs({0, 3, 3, 4}) && arrays.splits[1] == Longs({0, 1, 1, 3}));
    CHECK(counted.splits == arrays.splits && counted.values[0].empty());
}

void test_malformed_packed_values_are_the_same_problem_where_they_are_counted() {
    MessageTables made;
    made.add_many(made.add_table(), 1, FieldType::int64, true);
    const std::string longer(11, '\x80');
    for (const std::string& values : {varint(1) + longer + varint(2), std::string(40, 'a') + "\x80"}) {
        MessageDecoder reader = made.decoder(), counter = made.decoder({0});
        for (MessageDecoder* each : {&reader, &counter}) {
            CHECK(take(*each, {number(1, 5) + delimited(1, values)}) == 0);
            CHECK(each->problem().fault == Fault::malformed && each->problem().offset == 2);
            CHECK(each->root().rows == 0 && MessageArrays(*each).splits[0] == Longs({0}));
        }
        CHECK(reader.problem().expected == counter.problem().expected);
        CHECK(reader.problem().found == counter.problem().found);
        CHECK((values.size() == 41) == (reader.problem().found == "the end of the message within it"));
    }
}

void test_messages_merge_and_nest() {
    MessageTables made;
    const int root = made.add_table();
    const int one = made.add_message(root, 1, FieldType::message, true);
    made.add(one, 1, FieldType::int32);
    made.add_many(one, 2, FieldType::bytes);
    const int group = made.add_messages(root, 2, FieldType::group);
    const int item = made.add_messages(group, 1);
    made.add(item, 1, FieldType::boolean);
    made.add(root, 3, FieldType::message);
    const std::string groups = tag(2, 3) + delimited(1, number(1, 1)) + delimited(1, "") + tag(2, 4) + tag(2, 3) + tag(2, 4);
    MessageDecoder decoder = made.decoder();
    CHECK(take(decoder, {delimited(1, number(1, 5) + delimited(2, "a")) + groups + delimited(3, number(1, 1)),
                         groups + delimited(1, delimited(2, "b")) + delimited(3, number(1, 1)) + delimited(1, delimited(2, "c")) +
                             delimited(3, number(1, 2))}) == 2);
    const MessageArrays arrays(decoder);
    CHECK(arrays.values[0] == "\1\1" && arrays.numbers<std::int32_t>(1) == Ints({5, 0}));
    CHECK(arrays.texts(2) == Texts({"a", "b", "c"}) && arrays.splits[0] == Longs({0, 1, 3}));
    CHECK(arrays.splits[1] == Longs({0, 2, 4}) && arrays.splits[2] == Longs({0, 2, 2, 4, 4}));
    CHECK(arrays.values[3] == std::string("\1\0\1\0", 4));
    CHECK(arrays.texts(4) == Texts({number(1, 1), number(1, 1) + number(1, 2)}));
}

void test_a_member_of_a_oneof_clears_the_one_before() {
    MessageTables made;
    const int root = made.add_table();
    const int choice = made.add_oneof(root);
    made.add(root, 1, FieldType::string).oneof = choice;
    const int member = made.add_message(root, 2, FieldType::message, true, choice);
    made.add_many(member, 1, FieldType::int32);
    made.add(member, 2, FieldType::int32);
    const std::string message = delimited(2, number(1, 8) + number(2, 9));
    MessageDecoder decoder = made.decoder();
    CHECK(take(decoder, {delimited(1, "a") + message, message + delimited(1, "b"), ""}) == 3);
    const MessageArrays arrays(decoder);
    CHECK(arrays.numbers<std::int32_t>(0) == Ints({2, 1, 0}));
    CHECK(arrays.texts(1) == Texts({"", "b", ""}));
    CHECK(arrays.values[2] == std::string("\1\0\0", 3));
    CHECK(arrays.numbers<std::int32_t>(3) == Ints({8}) && arrays.splits[0] == Longs({0, 1, 1, 1}));
    CHECK(arrays.numbers<std::int32_t>(4) == Ints({9, 0, 0}));
}

std::string map_entry(std::uint64_t key, std::string_view value) { return delimited(1, number(1, key) + delimited(2, value)); }

void test_last_entry_of_a_key_remains() {
    MessageTables made;
    const int entry = made.add_map(made.add_table(), 1, FieldType::int32, FieldType::message);
    made.add_many(made.add_message(entry, 2), 1, FieldType::int32);
    const auto value = [](std::uint64_t n) { return number(1, n) + number(1, n + 1); };
    MessageDecoder decoder = made.decoder();
    CHECK(take(decoder, {map_entry(2, value(1)) + map_entry(1, "") + map_entry(2, value(3)) + map_entry(3, value(5)),
                         map_entry(2, value(7))}) == 2);
    const MessageArrays arrays(decoder);
    CHECK(arrays.numbers<std::int32_t>(0) == Ints({1, 2, 3, 2}) && arrays.splits[0] == Longs({0, 3, 4}));
    CHECK(arrays.numbers<std::int32_t>(1) == Ints({3, 4, 5, 6, 7, 8}) && arrays.splits[1] == Longs({0, 0, 2, 4, 6}));
    // protobuf writes integer keys from the last to the first
    const std::string records = support::encoded(made, arrays);
    CHECK(records == support::framed(map_entry(3, value(5)) + map_entry(2, value(3)) + map_entry(1, "")) +
                         support::framed(map_entry(2, value(7))));
}

void test_unknown_numbers_of_closed_enums_are_unknown_fields() {
    MessageTables made;
    const int root = made.add_table();
    made.with_presence(made.add(root, 1, FieldType::enumeration)).numbers = Ints{-1, 0, 5};
    made.add_many(root, 2, FieldType::enumeration).numbers = Ints{0, 1, 2};
    const int map = made.add_map(root, 3, FieldType::string, FieldType::enumeration);
    made.tables[static_cast<std::size_t>(map)].fields[1].numbers = Ints{0, 1};
    MessageDecoder decoder = made.decoder();
    const auto entry = [](std::uint64_t value) { return delimited(3, delimited(1, "k") + number(2, value)); };
    CHECK(take(decoder, {number(1, UINT64_MAX) + number(1, 4) + delimited(2, std::string("\0\3\2", 3)) + entry(1) + entry(2)}) == 1);
    const MessageArrays arrays(decoder);
    CHECK(arrays.numbers<std::int32_t>(0) == Ints({-1}) && arrays.values[1] == "\1");
    CHECK(arrays.numbers<std::int32_t>(2) == Ints({0, 2}));
    CHECK(arrays.texts(3) == Texts({"k"}) && arrays.numbers<std::int32_t>(4) == Ints({1}));
    CHECK(decoder.unknown_fields() == 3);
}

void test_unread_closed_enums_set_no_member_and_make_entries_unknown() {
    MessageTables made;
    const int root = made.add_table();
    const int choice = made.add_oneof(root);
    made.add(root, 1, FieldType::int32).oneof = choice;
    const int map = made.add_map(root, 3, FieldType::int32, FieldType::message);
    MessageField closed;
    closed.number = 2;
    closed.type = FieldType::enumeration;
    closed.numbers = Ints{0, 1};
    made.tables[static_cast<std::size_t>(map)].fields.push_back(closed);
    closed.oneof = choice;
    made.tables[static_cast<std::size_t>(root)].fields.push_back(closed);
    const auto entry = [](std::uint64_t key, std::uint64_t value) { return delimited(3, number(1, key) + number(2, value)); };
    MessageDecoder decoder = made.decoder();
    CHECK(take(decoder, {number(1, 7) + number(2, 9) + entry(1, 1) + entry(2, 9) + entry(3, 0), number(1, 7) + number(2, 1)}) == 2);
    const MessageArrays arrays(decoder);
    CHECK(arrays.numbers<std::int32_t>(0) == Ints({1, 2}) && arrays.numbers<std::int32_t>(1) == Ints({7, 0}));
    CHECK(arrays.numbers<std::int32_t>(2) == Ints({1, 3}) && arrays.splits[0] == Longs({0, 2, 2}));
    CHECK(decoder.unknown_fields() == 2);
}

void test_bytes_of_messages_beside_their_fields() {
    MessageTables made;
    const int root = made.add_table();
    const int one = made.add_message(root, 1), many = made.add_messages(root, 2);
    const int group = made.add_message(root, 3, FieldType::group), map = made.add_map(root, 4, FieldType::int32, FieldType::int32);
    for (const int table : {one, many, group}) made.add(table, 1, FieldType::int32);
    CHECK(map > group);
    for (MessageField& field : made.tables[0].fields) field.column = static_cast<int>(made.ncolumns++);
    const auto entry = [](std::uint64_t value) { return delimited(4, number(1, 5) + number(2, value)); };
    MessageDecoder decoder = made.decoder();
    CHECK(take(decoder, {delimited(1, number(1, 1)) + delimited(2, "") + delimited(1, number(1, 2)) + delimited(2, number(1, 3)) +
                             tag(3, 3) + number(1, 4) + varint(3 << 3 | 4, 3) + entry(6) + entry(7),
                         ""}) == 2);
    CHECK(take(decoder, {delimited(2, number(1, 3)) + delimited(2, "\x80")}) == 0);
    const MessageArrays arrays(decoder);
    const std::size_t whole = made.ncolumns - 4;
    CHECK(arrays.texts(whole) == Texts({number(1, 1) + number(1, 2), ""}));
    CHECK(arrays.texts(whole + 1) == Texts({"", number(1, 3)}) && arrays.splits[0] == Longs({0, 2, 2}));
    CHECK(arrays.texts(whole + 2) == Texts({number(1, 4), ""}));
    CHECK(arrays.texts(whole + 3) == Texts({number(1, 5) + number(2, 7)}) && arrays.splits[1] == Longs({0, 1, 1}));
    CHECK(arrays.numbers<std::int32_t>(0) == Ints({5}) && arrays.numbers<std::int32_t>(2) == Ints({2, 0}));
}

// Messages nested in field 1 around the content.
std::string nested(std::size_t depth, std::string content) {
    for (; depth > 0; --depth) content = delimited(1, content);
    return content;
}

void test_refused_records_leave_nothing_behind() {
    MessageTables made;
    const int root = made.add_table();
    int table = made.add_messages(root, 1);
    for (int depth = 0; depth < 101; ++depth) table = made.add_message(table, 1);
    made.add(root, 2, FieldType::string).utf8 = true;
    const int group = made.add_messages(root, 3, FieldType::group);
    made.add_many(group, 1, FieldType::float32, true);
    const std::string good = nested(100, "") + delimited(2, "a") + tag(3, 3) + delimited(1, "abcd") + tag(3, 4);
    const Texts bad{good + tag(0, 0) + "a", good + tag(5, 6), good + tag(4, 4), good + delimited(2, "\xff"),
                    good + tag(3, 3), good + tag(3, 3) + tag(2, 4), good + nested(101, ""), good + tag(2, 2) + varint(2) + "a",
                    good + tag(3, 3) + delimited(1, "abc") + tag(3, 4), good + "\x80", good + tag(2, 0) + varint(1, 11),
                    good + tag(9, 1) + "1234567"};
    MessageDecoder decoder = made.decoder();
    for (const std::string& payload : bad) {
        CHECK(take(decoder, {payload}) == 0);
        CHECK(decoder.problem().fault == (payload == bad[3] ? Fault::utf8 : Fault::malformed));
        CHECK(decoder.problem().offset <= payload.size() && !decoder.problem().expected.empty());
    }
    CHECK(decoder.unknown_fields() == 0 && MessageArrays(decoder).splits[0] == Longs({0}));
    CHECK(take(decoder, {good, bad[0], good + number(7, 1)}) == 2 && decoder.unknown_fields() == 1);
    MessageDecoder alone = made.decoder();
    CHECK(take(alone, {good, good}) == 2 && MessageArrays(alone) == MessageArrays(decoder));
}

void test_outputs_that_are_full() {
    MessageTables made;
    const int root = made.add_table();
    made.add(root, 1, FieldType::int64);
    made.add(root, 2, FieldType::bytes);
    const Texts payloads(3, number(1, 5) + delimited(2, "abcdefgh"));
    support::Exact memory(std::string(16, '\0')), offered(std::string(8, '\0'));
    MessageDecoder decoder = made.decoder(), limited = made.decoder();
    decoder.columns()[0].values() = dtf::Buffer(memory.data(), memory.size());
    decoder.columns()[1].values() = dtf::Buffer::offered(offered.data(), offered.size());
    CHECK(take(decoder, payloads) == 2);
    CHECK(decoder.problem().fault == Fault::full && decoder.problem().column == 0);
    CHECK(MessageArrays(decoder).texts(1) == Texts(2, "abcdefgh"));
    limited.set_memory_limit(4096);
    const std::string large(5000, 'x');
    CHECK(take(limited, {payloads[0], delimited(2, large)}) == 1);
    CHECK(limited.problem().fault == Fault::full && limited.problem().column == 1);
}

void test_records_are_those_that_protobuf_writes() {
    MessageTables made;
    const int root = made.add_table();
    made.add(root, 1, FieldType::sint32);
    made.add_many(root, 2, FieldType::uint64, true);
    made.add_many(root, 3, FieldType::boolean);
    const int group = made.add_message(root, 4, FieldType::group, true);
    made.with_presence(made.add(group, 1, FieldType::float64));
    made.add_many(root, 5, FieldType::string);
    const Texts payloads{"", number(1, 7) + delimited(2, varint(1) + varint(UINT64_MAX)) + number(3, 0) + number(3, 1),
                         tag(4, 3) + tag(4, 4) + delimited(5, ""),
                         tag(4, 3) + tag(1, 1) + std::string(8, '\0') + tag(4, 4) + delimited(5, std::string(300, 's'))};
    MessageDecoder decoder = made.decoder();
    CHECK(take(decoder, payloads) == payloads.size());
    std::string records;
    for (const std::string& payload : payloads) records += support::framed(payload);
    const MessageArrays arrays(decoder);
    for (const std::size_t capacity : {std::size_t{0}, std::size_t{50}, std::size_t{1000}}) {
        CHECK(support::encoded(made, arrays, capacity) == records);
    }
}

template <class Make>
bool refused(Make make) {
    try {
        make();
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

void test_tables_and_arrays_are_validated() {
    MessageTables made;
    const int root = made.add_table();
    made.add_many(root, 1, FieldType::int32);
    MessageTables twice = made;
    twice.add(root, 1, FieldType::int32);
    CHECK(refused([&] { twice.decoder(); }));
    MessageTables missing = made;
    missing.ncolumns += 1;
    CHECK(refused([&] { missing.decoder(); }));
    MessageTables around = made;
    const int inner = around.add_message(root, 2);
    around.tables[static_cast<std::size_t>(inner)].fields.push_back(around.tables[0].fields[1]);
    CHECK(refused([&] { around.decoder(); }));
    MessageDecoder decoder = made.decoder();
    CHECK(take(decoder, {number(1, 1), number(1, 2)}) == 2);
    MessageArrays arrays(decoder);
    for (const Longs& splits : {Longs{0, 1}, Longs{0, 2, 1}, Longs{0, 1, 3}}) {
        arrays.splits[0] = splits;
        CHECK(refused([&] { support::encoded(made, arrays); }));
    }
}

}  // namespace

int main() {
    return checks::run({
        TEST(test_last_scalar_wins_and_absent_ones_have_the_default),
        TEST(test_packed_and_unpacked_items_join),
        TEST(test_malformed_packed_values_are_the_same_problem_where_they_are_counted),
        TEST(test_messages_merge_and_nest),
        TEST(test_a_member_of_a_oneof_clears_the_one_before),
        TEST(test_last_entry_of_a_key_remains),
        TEST(test_unknown_numbers_of_closed_enums_are_unknown_fields),
        TEST(test_unread_closed_enums_set_no_member_and_make_entries_unknown),
        TEST(test_bytes_of_messages_beside_their_fields),
        TEST(test_refused_records_leave_nothing_behind),
        TEST(test_outputs_that_are_full),
        TEST(test_records_are_those_that_protobuf_writes),
        TEST(test_tables_and_arrays_are_validated),
    });
}
