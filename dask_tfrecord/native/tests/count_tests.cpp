// Tests of count-only columns: their splits and faults equal those of columns that keep values.
#include "checks.hpp"
#include "column_support.hpp"

namespace {

using namespace support;
using dtf::Cast;
using dtf::DataType;
using dtf::Fault;
using dtf::Kind;
using dtf::ValueLayout;
using dtf::Message;
using Ints = std::vector<std::int64_t>;

std::string floats_tensor(const Sizes& sizes, std::initializer_list<float> values) {
    return header(DataType::float32, sizes) + content(as_stored(values));
}

// Columns of every layout that has splits.
Specs every_column() {
    return {spec("i", Kind::int64, ValueLayout::ragged),
            cast_to(spec("c", Kind::int64, ValueLayout::ragged), Cast::uint8),
            spec("f", Kind::floats, ValueLayout::ragged, 2),
            cast_to(spec("h", Kind::floats, ValueLayout::ragged), Cast::float16),
            spec("b", Kind::bytes, ValueLayout::ragged),
            with_default(spec("d", Kind::bytes, ValueLayout::fixed, 2), {"one", "three"}),
            tensor_spec("t", DataType::float32, 4, {-1, 2}),
            tensor_spec("n", DataType::int32, 4, {-1}),
            tensor_spec("s", DataType::string, 0, {-1}),
            tensor_spec("w", DataType::string, 0, {2}),
            steps(spec("i", Kind::int64, ValueLayout::ragged)),
            optional(steps(spec("b", Kind::bytes, ValueLayout::fixed, 2))),
            optional(steps(cast_to(spec("c", Kind::int64, ValueLayout::fixed), Cast::int8)))};
}

std::string every_feature() {
    const std::string strings = header(DataType::string, {2}) + delimited(8, "ab") + delimited(8, "c");
    const std::string one_value = header(DataType::int32, {3}) + tag(7, 0) + varint(9);
    return entry("i", int64_list({1, -2, 300})) + entry("c", int64_list({3, 255})) + entry("f", float_list({1, 2})) +
           entry("h", float_list({1})) + entry("b", bytes_list({"x", "", "yz"})) + entry("d", bytes_list({"p", "qq"})) +
           entry("t", bytes_list({floats_tensor({1, 2}, {5, 6})})) + entry("n", bytes_list({one_value})) +
           entry("s", bytes_list({strings})) + entry("w", bytes_list({strings}));
}

std::string every_list() {
    return entry("i", feature_list({int64_list({1}), "", int64_list({2, 3})})) +
           entry("b", feature_list({bytes_list({"a", ""}), bytes_list({"bc", "d"})})) +
           entry("c", feature_list({int64_list({1})}));
}

std::string every_record() { return sequence_example(every_feature(), every_list()); }

Fed fed_with(const Specs& specs, const std::vector<std::string>& payloads) {
    return Fed(specs, payloads, true, Message::sequence_example);
}

void only_splits_are_kept() {
    const std::vector<std::string> records{every_record(), every_record() + every_record(),
                                           every_record() + delimited(1, entry("d", "") + entry("i", ""))};
    Fed counted = fed_with(counting(every_column()), records), read = fed_with(every_column(), records);
    CHECK(counted.whole() && read.whole() && counted.walk.records == 3);
    CHECK(splits_in(counted.decoder) == splits_in(read.decoder));
    CHECK(items<std::int64_t>(counted.column().row_splits) == Ints{0, 3, 6, 6});
    for (dtf::Column& column : counted.decoder.columns()) CHECK(!column.values.keeps() && column.spec().counted);
}

void counted_values_allocate_no_memory() {
    const std::string large(1 << 20, 'x');
    Fed bytes(counting({spec("k", Kind::bytes, ValueLayout::ragged)}), {example(entry("k", bytes_list({large, large})))});
    CHECK(bytes.whole() && bytes.column().values.size() == 2 << 20 && bytes.column().values.room() == 0);
    CHECK(items<std::int64_t>(bytes.column().value_splits) == Ints{0, 1 << 20, 2 << 20});
    const std::string packed = delimited(1, std::string(1 << 20, '\1'));
    Fed ints(counting({spec("k", Kind::int64, ValueLayout::ragged)}), {example(entry("k", delimited(3, packed)))});
    CHECK(ints.whole() && ints.column().values.room() == 0);
    CHECK(items<std::int64_t>(ints.column().row_splits) == Ints{0, 1 << 20});
    Fed floats(counting({spec("k", Kind::floats, ValueLayout::ragged)}), {example(entry("k", delimited(2, packed)))});
    CHECK(floats.whole() && floats.column().values.room() == 0);
    CHECK(items<std::int64_t>(floats.column().row_splits) == Ints{0, 1 << 18});
}

void overridden_values_are_not_counted() {
    const std::string one_by_one = delimited(3, tag(1, 0) + varint(6));
    const std::string lists = int64_list({1, 2}) + float_list({1}) + int64_list({4, 5}) + one_by_one;
    for (const Cast cast : {Cast::none, Cast::uint8}) {
        Fed fed(counting({cast_to(spec("k", Kind::int64, ValueLayout::ragged), cast)}),
                {example(entry("k", int64_list({9}))), example(entry("k", int64_list({1})) + entry("k", lists))});
        CHECK(fed.whole() && items<std::int64_t>(fed.column().row_splits) == Ints{0, 1, 4});
    }
    Fed bytes(counting({spec("k", Kind::bytes, ValueLayout::ragged)}),
              {example(entry("k", bytes_list({"abc"})) + entry("k", bytes_list({"d", "ef"})))});
    CHECK(bytes.whole() && items<std::int64_t>(bytes.column().value_splits) == Ints{0, 1, 3});
}

void counts_that_do_not_fit_are_refused() {
    const std::vector<std::pair<Fault, std::string>> bad{
        {Fault::cast, entry("c", int64_list({1, 256}))},
        {Fault::cast, entry("h", float_list({1e6f}))},
        {Fault::count, entry("f", float_list({1}))},
        {Fault::count, entry("d", bytes_list({"p"}))},
        {Fault::kind, entry("i", float_list({1}))},
        {Fault::kind, entry("b", int64_list({1}))},
        {Fault::tensor, entry("t", bytes_list({floats_tensor({1, 3}, {1, 2, 3})}))},
        {Fault::tensor, entry("s", bytes_list({"no"}))},
        {Fault::unknown_key, entry("new", "")},
        {Fault::malformed, entry("i", delimited(3, delimited(1, std::string(10, '\x80') + '\1')))},
        {Fault::malformed, entry("i", delimited(3, delimited(1, "\1\x80")))},
        {Fault::malformed, entry("f", delimited(2, delimited(1, "12345")))},
    };
    Fed one = fed_with(counting(every_column()), {every_record()});
    for (const auto& [fault, entries] : bad) {
        const std::vector<std::string> records{every_record(), every_record() + delimited(1, entries)};
        Fed counted = fed_with(counting(every_column()), records), read = fed_with(every_column(), records);
        CHECK(counted.fault() == fault && said_of(counted.decoder.problem()) == said_of(read.decoder.problem()));
        CHECK(counted.walk.records == 1 && splits_in(counted.decoder) == splits_in(one.decoder));
    }
}

void counting_refuses_the_flipped_bits_that_decoding_refuses() {
    const std::string good = every_record();
    std::size_t wrong = 0, refused = 0;
    for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
        std::string flipped = good;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
        const std::vector<std::string> records{good, flipped};
        Fed counted = fed_with(counting(every_column()), records), read = fed_with(every_column(), records);
        refused += !read.whole();
        for (int again = 0; again < 2; ++again) {
            wrong += counted.walk.records != read.walk.records || counted.fault() != read.fault();
            wrong += said_of(counted.decoder.problem()) != said_of(read.decoder.problem());
            wrong += splits_in(counted.decoder) != splits_in(read.decoder);
            counted.feed({good});
            read.feed({good});
        }
    }
    CHECK(wrong == 0 && refused > good.size());
}

const checks::Test tests[] = {
    TEST(only_splits_are_kept),
    TEST(counted_values_allocate_no_memory),
    TEST(overridden_values_are_not_counted),
    TEST(counts_that_do_not_fit_are_refused),
    TEST(counting_refuses_the_flipped_bits_that_decoding_refuses),
};

}  // namespace

int main() { return checks::run(tests); }
