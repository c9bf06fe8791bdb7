// Tests of the encoder: records are those that a plain writer makes, and no byte is written past the room there is.
#include "checks.hpp"
#include "encode.hpp"
#include "support.hpp"

using dtf::Encoder;
using dtf::Field;
using dtf::Kind;
using dtf::Message;
using support::delimited;

namespace {

// Numbers in a block of just their size.
template <class T>
support::Exact exact(const std::vector<T>& values) {
    return support::Exact(std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

const std::int64_t* splits(support::Exact& block) { return reinterpret_cast<const std::int64_t*>(block.data()); }

// All records, into blocks of at most `room` bytes, or of as many as the next record needs.
std::string encoded(Encoder& encoder, std::size_t rows, std::size_t room) {
    std::string all;
    std::size_t row = 0;
    while (row < rows) {
        support::Exact block{std::string(room, '\0')};
        const dtf::Encoded done = encoder.encode(row, block.data(), block.size());
        all.append(reinterpret_cast<const char*>(block.data()), done.bytes);
        row += done.records;
        CHECK(row == rows ? done.need == 0 : done.need > room - done.bytes);
        if (done.records == 0) room = done.need;
        if (room == 0) break;
    }
    return all;
}

void test_lists_are_those_of_a_plain_writer() {
    // Varints of every length, of both signs.
    std::vector<std::int64_t> numbers;
    for (unsigned shift = 0; shift < 64; ++shift) {
        const std::uint64_t bit = std::uint64_t{1} << shift;
        for (const std::uint64_t value : {bit - 1, bit, ~bit}) numbers.push_back(static_cast<std::int64_t>(value));
    }
    const std::size_t rows = numbers.size();
    support::Exact values = exact(numbers);
    const std::vector<float> reals(2 * rows, 0.5f);
    support::Exact floats = exact(reals);
    std::string texts;
    std::vector<std::int64_t> text_ends{0};
    for (std::size_t row = 0; row < rows; ++row) {
        texts += std::string(row % 5, static_cast<char>('a' + row % 26));
        text_ends.push_back(static_cast<std::int64_t>(texts.size()));
    }
    support::Exact bytes(texts), ends = exact(text_ends);
    std::vector<Field> fields(3);
    fields[0].key = std::string(200, 'k');  // whose length takes two bytes
    fields[0].values = values.data();
    fields[1].key = "f";
    fields[1].kind = Kind::floats;
    fields[1].count = 2;
    fields[1].values = floats.data();
    fields[2].key = "";
    fields[2].kind = Kind::bytes;
    fields[2].prefix = "<>";
    fields[2].values = bytes.data();
    fields[2].value_splits = splits(ends);
    std::string wanted;
    for (std::size_t row = 0; row < rows; ++row) {
        const auto begin = static_cast<std::size_t>(text_ends[row]);
        const std::string text = "<>" + texts.substr(begin, static_cast<std::size_t>(text_ends[row + 1]) - begin);
        wanted += support::framed(support::example(
            support::entry(fields[0].key, support::int64_list({numbers[row]})) +
            support::entry("f", support::float_list({0.5f, 0.5f})) + support::entry("", support::bytes_list({text}))));
    }
    Encoder encoder(fields, rows, Message::example);
    for (const std::size_t room : {std::size_t{0}, std::size_t{300}, std::size_t{1000}, std::size_t{1} << 20}) {
        CHECK(encoded(encoder, rows, room) == wanted);
    }
}

void test_rows_and_steps_of_any_length() {
    const std::vector<std::int64_t> numbers{1, 300, -1};
    support::Exact values = exact(numbers), rows = exact(std::vector<std::int64_t>{0, 0, 3, 3}),
                   steps = exact(std::vector<std::int64_t>{0, 2, 2, 3});
    std::vector<Field> fields(2);
    fields[0].key = "x";
    fields[0].values = values.data();
    fields[0].row_splits = splits(rows);
    fields[1].key = "x";  // the context and the lists have keys of their own
    fields[1].list = true;
    fields[1].values = values.data();
    fields[1].step_splits = splits(steps);
    fields[1].row_splits = splits(rows);
    const std::string none = delimited(3, ""), all = support::int64_list({1, 300, -1});
    const std::string three =
        delimited(1, support::int64_list({1, 300})) + delimited(1, none) + delimited(1, support::int64_list({-1}));
    const auto record = [](const std::string& context, const std::string& lists) {
        return support::framed(delimited(1, support::entry("x", context)) + delimited(2, support::entry("x", lists)));
    };
    const std::string wanted = record(none, "") + record(all, three) + record(none, "");
    Encoder encoder(fields, 3, Message::sequence_example);
    for (std::size_t room = 0; room < wanted.size() + 20; ++room) CHECK(encoded(encoder, 3, room) == wanted);
}

void test_messages_without_features() {
    Encoder example({}, 2, Message::example), sequence({}, 2, Message::sequence_example);
    CHECK(encoded(example, 2, 100) == support::framed(support::example("")) + support::framed(support::example("")));
    CHECK(encoded(sequence, 2, 100) == support::framed("") + support::framed(""));
}

void test_a_message_past_two_gigabytes_is_not_written() {
    // Values overlap: a mebibyte stands for many.
    const std::string mebibyte(1 << 20, 'x');
    const std::vector<std::int64_t> ends{0, 1 << 20};
    std::vector<Field> fields(2048);
    for (std::size_t i = 0; i < fields.size(); ++i) {
        fields[i].key = std::to_string(i);
        fields[i].kind = Kind::bytes;
        fields[i].values = support::bytes_of(mebibyte);
        fields[i].value_splits = ends.data();
    }
    Encoder encoder(std::move(fields), 1, Message::example);
    std::uint8_t nothing = 7;
    const dtf::Encoded done = encoder.encode(0, &nothing, 1);
    CHECK(done.records == 0 && done.bytes == 0 && done.need > dtf::most_payload && nothing == 7);
}

const checks::Test tests[] = {
    TEST(test_lists_are_those_of_a_plain_writer),
    TEST(test_rows_and_steps_of_any_length),
    TEST(test_messages_without_features),
    TEST(test_a_message_past_two_gigabytes_is_not_written),
};

}  // namespace

int main() { return checks::run(tests); }
