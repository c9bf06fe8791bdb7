// Tests of the encoder: records equal those of a plain writer, and writes stay within the buffer.
#include <atomic>
#include <stdexcept>
#include <thread>

#include "checks.hpp"
#include "encode.hpp"
#include "support.hpp"

using dtf::Encoder;
using dtf::Field;
using dtf::Kind;
using dtf::Message;
using support::delimited;

namespace {

// A block of exactly the size of the numbers.
template <class T>
support::Exact exact(const std::vector<T>& values) {
    return support::Exact(std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

dtf::Splits splits(support::Exact& block) {
    return {reinterpret_cast<const std::int64_t*>(block.data()), block.size() / sizeof(std::int64_t)};
}

void set_values(Field& field, support::Exact& block) {
    field.values = block.data();
    field.nbytes = block.size();
}

// All records, encoded to buffers of `capacity` bytes, or of the size that the next record needs.
std::string encoded(Encoder& encoder, std::size_t rows, std::size_t capacity) {
    std::string all;
    std::size_t row = 0;
    while (row < rows) {
        support::Exact block{std::string(capacity, '\0')};
        const dtf::Encoded done = encoder.encode(row, block.data(), block.size());
        all.append(reinterpret_cast<const char*>(block.data()), done.bytes);
        row += done.records;
        CHECK(row == rows ? done.need == 0 : done.need > capacity - done.bytes);
        if (done.records == 0) capacity = done.need;
        if (capacity == 0) break;
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
    set_values(fields[0], values);
    fields[1].key = "f";
    fields[1].kind = Kind::floats;
    fields[1].count = 2;
    set_values(fields[1], floats);
    fields[2].key = "";
    fields[2].kind = Kind::bytes;
    fields[2].prefix = "<>";
    set_values(fields[2], bytes);
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
    for (const std::size_t capacity : {std::size_t{0}, std::size_t{300}, std::size_t{1000}, std::size_t{1} << 20}) {
        CHECK(encoded(encoder, rows, capacity) == wanted);
    }
}

void test_rows_and_steps_of_any_length() {
    const std::vector<std::int64_t> numbers{1, 300, -1};
    support::Exact values = exact(numbers), rows = exact(std::vector<std::int64_t>{0, 0, 3, 3}),
                   steps = exact(std::vector<std::int64_t>{0, 2, 2, 3});
    std::vector<Field> fields(2);
    fields[0].key = "x";
    set_values(fields[0], values);
    fields[0].row_splits = splits(rows);
    fields[1].key = "x";  // the context and the lists have keys of their own
    fields[1].list = true;
    set_values(fields[1], values);
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
    for (std::size_t capacity = 0; capacity < wanted.size() + 20; ++capacity) CHECK(encoded(encoder, 3, capacity) == wanted);
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

void test_items_of_a_list_of_examples() {
    const std::vector<std::int64_t> numbers{1, 300, -1, 7};
    support::Exact values = exact(numbers), rows = exact(std::vector<std::int64_t>{0, 0, 3}),
                   later = exact(std::vector<std::int64_t>{1, 1, 4}), ends = exact(std::vector<std::int64_t>{0, 0, 0, 2, 3}),
                   context = exact(std::vector<std::int64_t>{0, 1, 3});
    std::vector<Field> fields(3);
    for (Field& field : fields) set_values(field, values);
    fields[0].key = fields[1].key = "x";  // the context has keys of its own
    fields[0].row_splits = splits(context);
    fields[1].list = fields[2].list = true;
    fields[1].row_splits = splits(rows);
    fields[2].key = "y";
    fields[2].row_splits = splits(later);
    fields[2].step_splits = splits(ends);
    const auto item = [](const std::string& one, const std::string& other) {
        return delimited(1, support::example(support::entry("x", one) + support::entry("y", other)));
    };
    const auto of_context = [](const std::string& held) {
        return delimited(2, support::example(support::entry("x", held)));
    };
    const std::string wanted =
        support::framed(of_context(support::int64_list({1}))) +
        support::framed(item(support::int64_list({1}), delimited(3, "")) +
                        item(support::int64_list({300}), support::int64_list({1, 300})) +
                        item(support::int64_list({-1}), support::int64_list({-1})) +
                        of_context(support::int64_list({300, -1})));
    Encoder encoder(fields, 2, Message::example_list);
    for (std::size_t capacity = 0; capacity < wanted.size() + 20; ++capacity) CHECK(encoded(encoder, 2, capacity) == wanted);
    Encoder alone({fields[1]}, 1, Message::example_list), nothing({}, 2, Message::example_list);
    CHECK(encoded(alone, 1, 100) == support::framed("") && encoded(nothing, 2, 100) == support::framed("") + support::framed(""));
    fields[2].row_splits = splits(context);
    CHECK(refused([&] { Encoder(fields, 2, Message::example_list); }));
}

void test_messages_without_features() {
    Encoder example({}, 2, Message::example), sequence({}, 2, Message::sequence_example);
    CHECK(encoded(example, 2, 100) == support::framed(support::example("")) + support::framed(support::example("")));
    CHECK(encoded(sequence, 2, 100) == support::framed("") + support::framed(""));
}

void test_a_message_past_two_gigabytes_is_not_written() {
    // All fields view the same MiB.
    const std::string mebibyte(1 << 20, 'x');
    const std::vector<std::int64_t> ends{0, 1 << 20};
    std::vector<Field> fields(2048);
    for (std::size_t i = 0; i < fields.size(); ++i) {
        fields[i].key = std::to_string(i);
        fields[i].kind = Kind::bytes;
        fields[i].values = support::bytes_of(mebibyte);
        fields[i].nbytes = mebibyte.size();
        fields[i].value_splits = dtf::Splits{ends.data(), ends.size()};
    }
    Encoder encoder(fields, 1, Message::example);
    std::uint8_t nothing = 7;
    const dtf::Encoded done = encoder.encode(0, &nothing, 1);
    CHECK(done.records == 0 && done.bytes == 0 && done.need > dtf::most_payload && nothing == 7);
}

void test_splits_that_exceed_the_values_are_refused() {
    support::Exact values(std::string(16, '\0'));
    const auto encoder_of = [&](const std::vector<std::int64_t>& ends, std::size_t rows) {
        support::Exact block = exact(ends);
        Field field;
        set_values(field, values);
        field.row_splits = splits(block);
        Encoder({field}, rows, Message::example);
    };
    encoder_of({0, 2}, 1);
    encoder_of({0, 2, 99}, 1);  // only the splits of the rows count
    for (const std::vector<std::int64_t>& ends : {std::vector<std::int64_t>{0, 3}, {1, 0}, {-1, 0}, {0}, {}}) {
        CHECK(refused([&] { encoder_of(ends, 1); }));
    }
    CHECK(refused([&] { encoder_of({0, 1}, 2); }));
    Field field;
    set_values(field, values);
    field.count = 3;
    CHECK(refused([&] { Encoder({field}, 1, Message::example); }));
    field.count = dtf::most_values;
    CHECK(refused([&] { Encoder({field}, 64, Message::example); }));
}

void test_splits_may_change_after_the_encoder_is_made() {
    const std::vector<std::int64_t> numbers{1, 300, -1};
    support::Exact values = exact(numbers), texts("abc");
    std::vector<std::int64_t> row_ends{0, 1, 3}, step_ends{0, 1, 1, 3}, value_ends{0, 1, 3};
    std::vector<Field> fields(3);
    fields[0].key = "i";
    set_values(fields[0], values);
    fields[0].row_splits = dtf::Splits{row_ends.data(), row_ends.size()};
    fields[1].key = "s";
    fields[1].list = true;
    set_values(fields[1], values);
    fields[1].row_splits = fields[0].row_splits;
    fields[1].step_splits = dtf::Splits{step_ends.data(), step_ends.size()};
    fields[2].key = "b";
    fields[2].kind = Kind::bytes;
    set_values(fields[2], texts);
    fields[2].value_splits = dtf::Splits{value_ends.data(), value_ends.size()};
    Encoder encoder(fields, 2, Message::sequence_example);
    const std::string wanted = encoded(encoder, 2, 1000);
    for (std::vector<std::int64_t>* ends : {&row_ends, &step_ends, &value_ends}) {
        for (std::int64_t& end : *ends) end = std::int64_t{1} << 40;
    }
    CHECK(encoded(encoder, 2, 1000) == wanted);
}

// Another thread makes values longer between the pass that computes sizes and the pass that writes.
void test_values_that_change_do_not_overflow_the_output() {
    constexpr std::size_t count = 20000;
    std::vector<std::int64_t> numbers(count, 0);
    std::vector<Field> fields(2);
    for (Field& field : fields) {
        field.count = count;
        field.values = reinterpret_cast<const std::uint8_t*>(numbers.data());
        field.nbytes = count * sizeof(std::int64_t);
    }
    fields[1].key = "other";
    Encoder encoder(fields, 1, Message::example);
    std::atomic<bool> done{false};
    std::thread writer([&] {
        for (std::int64_t value = 0; !done; value = ~value) {
            // Through volatile, so that the compiler keeps each write.
            for (volatile std::int64_t& number : numbers) number = value;
        }
    });
    int changed = 0;
    for (int i = 0; i < 300; ++i) {
        support::Exact block{std::string(2 * count + 100 + 10 * count * static_cast<std::size_t>(i % 3), '\0')};
        try {
            const dtf::Encoded written = encoder.encode(0, block.data(), block.size());
            CHECK(written.records == 0 ? written.need > block.size() : written.bytes <= block.size());
        } catch (const std::runtime_error&) {
            ++changed;
        }
    }
    done = true;
    writer.join();
    CHECK(changed > 0);
}

const checks::Test tests[] = {
    TEST(test_lists_are_those_of_a_plain_writer),
    TEST(test_rows_and_steps_of_any_length),
    TEST(test_items_of_a_list_of_examples),
    TEST(test_messages_without_features),
    TEST(test_a_message_past_two_gigabytes_is_not_written),
    TEST(test_splits_that_exceed_the_values_are_refused),
    TEST(test_splits_may_change_after_the_encoder_is_made),
    TEST(test_values_that_change_do_not_overflow_the_output),
};

}  // namespace

int main() { return checks::run(tests); }
