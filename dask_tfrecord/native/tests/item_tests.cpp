// Tests of lists of Examples: the features of their items as columns, and faults of items that do not fit.
#include "checks.hpp"
#include "column_support.hpp"

namespace {

using namespace support;
using dtf::Cast;
using dtf::Fault;
using dtf::Kind;
using dtf::Message;
using dtf::ValueLayout;
using Ints = std::vector<std::int64_t>;

Fed fed_items(const Specs& specs, const std::vector<std::string>& payloads, bool closed = false) {
    return Fed(specs, payloads, closed, Message::example_list);
}

dtf::ColumnSpec fixed_ints(std::size_t count = 1) { return steps(spec("k", Kind::int64, ValueLayout::fixed, count)); }
dtf::ColumnSpec ragged_ints(std::size_t count = 1) { return steps(spec("k", Kind::int64, ValueLayout::ragged, count)); }

// An item with one feature `k`.
std::string one(std::initializer_list<std::int64_t> values) { return entry("k", int64_list(values)); }

// ---- what items become

void items_of_one_size() {
    for (const std::size_t count : {std::size_t{1}, std::size_t{2}}) {
        const auto item = [&](std::int64_t value) { return count == 1 ? one({value}) : one({value, -value}); };
        Fed fed = fed_items({fixed_ints(count), spec("q", Kind::int64, ValueLayout::fixed)},
                            {example_list({item(1), item(300)}, entry("q", int64_list({5}))),
                             example_list({}, entry("q", int64_list({6}))),
                             delimited(2, example(entry("q", int64_list({7})))) + example_list({item(3)})});
        CHECK(fed.whole() && fed.walk.records == 3);
        CHECK(items<std::int64_t>(fed.column().values) == (count == 1 ? Ints{1, 300, 3} : Ints{1, -1, 300, -300, 3, -3}));
        CHECK(items<std::int64_t>(fed.column().row_splits) == Ints{0, 2, 2, 3});
        CHECK(fed.column().step_splits.size() == 0);
        CHECK(items<std::int64_t>(fed.column(1).values) == Ints{5, 6, 7});
    }
    Fed bytes = fed_items({steps(spec("k", Kind::bytes, ValueLayout::fixed))},
                          {example_list({entry("k", bytes_list({"ab"})), entry("k", bytes_list({""}))})});
    CHECK(bytes.whole() && text(bytes.column().values) == "ab");
    CHECK(items<std::int64_t>(bytes.column().value_splits) == Ints{0, 2, 2});
}

void items_of_any_size() {
    Fed fed = fed_items({ragged_ints()}, {example_list({one({1}), "", one({2, 3}), one({})}), "", example_list({one({4})})});
    CHECK(fed.whole());
    CHECK(items<std::int64_t>(fed.column().values) == Ints{1, 2, 3, 4});
    CHECK(items<std::int64_t>(fed.column().step_splits) == Ints{0, 1, 1, 3, 3, 4});
    CHECK(items<std::int64_t>(fed.column().row_splits) == Ints{0, 4, 4, 5});
}

void items_without_a_key_take_the_default() {
    for (const bool casts : {false, true}) {
        dtf::ColumnSpec ints = optional(fixed_ints());
        ints = with_default(casts ? cast_to(ints, Cast::uint8) : ints,
                            {casts ? std::string("\x09") : little_endian(std::int64_t{9})});
        Fed fed = fed_items({ints}, {example_list({one({1}), "", one({2}), one({}), entry("k", "")})});
        CHECK(fed.whole());
        if (casts) CHECK(text(fed.column().values) == std::string("\x01\x09\x02\x09\x09"));
        if (!casts) CHECK(items<std::int64_t>(fed.column().values) == Ints({1, 9, 2, 9, 9}));
    }
    Fed bytes = fed_items({with_default(steps(spec("k", Kind::bytes, ValueLayout::fixed, 2)), {"x", ""})},
                          {example_list({"", entry("k", bytes_list({"", "ab"}))})});
    CHECK(bytes.whole() && text(bytes.column().values) == "xab");
    CHECK(items<std::int64_t>(bytes.column().value_splits) == Ints{0, 1, 1, 1, 3});
    // A memory limit holds for the default values of many small items.
    dtf::Decoder limited({with_default(fixed_ints(), {little_endian(std::int64_t{9})})}, true, false, Message::example_list);
    limited.columns()[0].set_memory_limit(20);
    const Exact block(framed(example_list({"", "", ""})));
    CHECK(limited.feed(block.data(), block.size(), 1).stop == dtf::Stop::feature && limited.problem().fault == Fault::full);
}

void the_last_entry_of_a_key_counts_in_each_item() {
    const std::string twice = entry("k", int64_list({1, 2, 3})) + entry("k", float_list({1})) + one({7});
    Fed fed = fed_items({fixed_ints()}, {example_list({one({5}) + one({6}), twice})});
    CHECK(fed.whole() && items<std::int64_t>(fed.column().values) == Ints({6, 7}));
    Fed cast = fed_items({cast_to(fixed_ints(), Cast::int8)}, {example_list({one({500}) + one({6}), twice})});
    CHECK(cast.whole() && text(cast.column().values) == "\x06\x07");
    Fed ragged = fed_items({ragged_ints()}, {example_list({one({5}) + one({6, 7}), twice})});
    CHECK(ragged.whole() && items<std::int64_t>(ragged.column().step_splits) == Ints({0, 2, 3}));
    // Maps of one item merge, and so do the parts of a context; those of two items do not.
    const std::string parts = delimited(1, example(one({1})) + example(one({2})));
    Fed merged = fed_items({fixed_ints()}, {parts + parts});
    CHECK(merged.whole() && items<std::int64_t>(merged.column().values) == Ints({2, 2}));
    const std::string context = delimited(2, example(entry("a", int64_list({1})))) + delimited(2, example(entry("b", int64_list({2}))));
    Fed both = fed_items({spec("a", Kind::int64, ValueLayout::fixed), spec("b", Kind::int64, ValueLayout::fixed)}, {context});
    CHECK(both.whole());
}

// ---- faults

void the_first_invalid_item_is_reported() {
    struct Case {
        dtf::ColumnSpec spec;
        std::string bad;
        Fault fault;
        std::uint64_t found;
    };
    const Case cases[] = {
        {fixed_ints(), "", Fault::missing, 0},
        {fixed_ints(), entry("k", ""), Fault::missing, 0},
        {fixed_ints(), one({}), Fault::count, 0},
        {fixed_ints(), one({1, 2}), Fault::count, 2},
        {fixed_ints(), entry("k", float_list({1})), Fault::kind, 2},
        {ragged_ints(2), one({1, 2, 3}), Fault::count, 3},
        {cast_to(fixed_ints(), Cast::uint8), one({256}), Fault::cast, 256},
        {cast_to(ragged_ints(), Cast::uint8), one({256}), Fault::cast, 256},
    };
    for (const Case& each : cases) {
        const std::string good = each.spec.layout == ValueLayout::ragged ? one({1, 2}) : one({1});
        Fed fed = fed_items({each.spec}, {example_list({good}), example_list({good, each.bad, each.bad}), example_list({good})});
        const dtf::Problem& problem = fed.decoder.problem();
        CHECK(fed.fault() == each.fault && fed.walk.records == 1);
        CHECK(problem.column == 0 && problem.step == 1 && problem.found == each.found);
        Fed before = fed_items({each.spec}, {example_list({good})});
        CHECK(contents(fed.decoder) == contents(before.decoder));
    }
    Fed utf8 = fed_items({steps(text_spec("k", ValueLayout::fixed))},
                         {example_list({entry("k", bytes_list({"a"})), entry("k", bytes_list({"\xff"}))})});
    CHECK(utf8.fault() == Fault::utf8 && utf8.decoder.problem().step == 1);
}

void keys_that_are_unset_or_unknown() {
    const dtf::ColumnSpec unset = steps(spec("k", Kind::none, ValueLayout::unset));
    CHECK(fed_items({unset}, {example_list({"", entry("k", "")})}, true).whole());
    Fed set = fed_items({unset}, {example_list({"", one({1})})}, true);
    CHECK(set.fault() == Fault::kind && set.decoder.problem().step == 1);
    Fed unknown = fed_items({fixed_ints()}, {example_list({one({1}), one({1}) + entry("new", "")})}, true);
    CHECK(unknown.fault() == Fault::unknown_key && unknown.decoder.problem().text == "new");
    CHECK(unknown.decoder.problem().step == 1);
    Fed context = fed_items({fixed_ints()}, {example_list({one({1})}, entry("k", ""))}, true);
    CHECK(context.fault() == Fault::unknown_key && context.decoder.problem().step == -1);
    CHECK(fed_items({steps(spec("k", Kind::none, ValueLayout::skipped))}, {example_list({one({1})})}, true).whole());
}

void other_messages_are_not_lists_of_examples() {
    const std::string entries = entry("", int64_list({1})) + entry("", float_list({2}));
    // protobuf parses both as lists of Examples: the empty keys as entries, the values as unknown fields.
    const std::string plain = example(entries);
    const std::string sequence = sequence_example(entry("", int64_list({1})), entry("", feature_list({int64_list({1})})));
    for (const std::string& payload : {plain, sequence, delimited(2, entries)}) {
        CHECK(fed_items({}, {payload}).fault() == Fault::not_example);
    }
    CHECK(fed_items({}, {example(entry("key", int64_list({1})))}).fault() != Fault::none);
    // Items that are SequenceExamples.
    CHECK(fed_items({}, {delimited(1, sequence_example(one({1}), ""))}).fault() == Fault::not_example);
    CHECK(fed_items({}, {delimited(3, "x")}).fault() == Fault::not_example);
    // Unknown fields next to values, and messages without features.
    const std::string odd = delimited(1, example(one({1}) + delimited(5, "x")) + delimited(3, "y")) + delimited(4, "z");
    CHECK(fed_items({fixed_ints()}, {odd}).whole());
    CHECK(fed_items({ragged_ints()}, {"", delimited(1, ""), delimited(2, ""), delimited(1, example(""))}).whole());
    // And the other way round.
    CHECK(Fed({}, {example_list({one({1})}, one({2}))}).fault() == Fault::not_example);
    CHECK(Fed({}, {example_list({one({1})})}).fault() != Fault::none);
}

void unknown_groups_within_items_count_from_their_depth() {
    const auto groups = [](std::size_t depth) {
        std::string field;
        for (std::size_t i = 0; i < depth; ++i) field += tag(9, 3);
        for (std::size_t i = 0; i < depth; ++i) field += tag(9, 4);
        return field;
    };
    for (std::size_t level = 0; level < 6; ++level) {
        const auto record = [&](std::size_t depth) {
            const auto at = [&](std::size_t place) { return place == level ? groups(depth) : std::string(); };
            const std::string value = at(4) + delimited(3, at(5) + delimited(1, varint(5)));
            const std::string item = at(1) + delimited(1, at(2) + delimited(1, at(3) + delimited(1, "k") + delimited(2, value)));
            return at(0) + delimited(1, item);
        };
        CHECK(fed_items({ragged_ints()}, {record(100 - level)}).whole());
        CHECK(fed_items({ragged_ints()}, {record(101 - level)}).fault() == Fault::malformed);
    }
}

// ---- damage

Specs every_column() {
    return {spec("x", Kind::int64, ValueLayout::fixed),
            fixed_ints(),
            steps(spec("i", Kind::int64, ValueLayout::fixed, 2)),
            steps(cast_to(spec("r", Kind::int64, ValueLayout::ragged), Cast::uint8)),
            with_default(steps(cast_to(spec("f", Kind::floats, ValueLayout::fixed), Cast::float16)), {"ab"}),
            steps(text_spec("b", ValueLayout::fixed)),
            steps(spec("s", Kind::none, ValueLayout::skipped)),
            steps(spec("u", Kind::none, ValueLayout::unset)),
            spec("i", Kind::bytes, ValueLayout::ragged)};  // a key of its own, in the context
}

std::string every_item(std::int64_t number) {
    const std::string label = std::to_string(number);
    const std::string short_one = one({number}) + entry("i", int64_list({number, 1})) + entry("b", bytes_list({label}));
    const std::string longer = short_one + entry("r", int64_list({1, 2, 3})) + entry("f", float_list({0.5f})) +
                               entry("s", "no list") + entry("u", "");
    return example_list({longer, short_one, longer}, entry("x", int64_list({number})) + entry("i", bytes_list({label})));
}

void damaged_items_leave_no_output() {
    const std::string good = every_item(7);
    const Flips flips = flip_every_bit(good, [](const std::vector<std::string>& payloads) {
        return fed_items(every_column(), payloads, true);
    });
    CHECK(flips.wrong == 0 && flips.refused > good.size());
    for (std::size_t size = 0; size < good.size(); ++size) {
        Fed cut = fed_items(every_column(), {good, good.substr(0, size)}, true);
        CHECK(cut.fault() != Fault::none && cut.walk.records == 1);
    }
}

void blocks_of_items_cut_anywhere_give_the_same() {
    std::string bytes;
    for (std::int64_t i = 0; i < 3; ++i) bytes += framed(every_item(i));
    Fed whole = fed_items(every_column(), {every_item(0), every_item(1), every_item(2)}, true);
    CHECK(whole.whole());
    for (std::size_t piece = 1; piece < bytes.size(); piece = piece < 20 ? piece + 1 : piece + 37) {
        dtf::Decoder decoder(every_column(), true, true, Message::example_list);
        std::string carried;
        for (std::size_t at = 0; at < bytes.size(); at += piece) {
            carried += bytes.substr(at, piece);
            const Exact block(carried);
            carried.erase(0, static_cast<std::size_t>(decoder.feed(block.data(), block.size(), UINT64_MAX).consumed));
        }
        CHECK(carried.empty() && contents(decoder) == contents(whole.decoder));
    }
}

const checks::Test tests[] = {
    TEST(items_of_one_size),
    TEST(items_of_any_size),
    TEST(items_without_a_key_take_the_default),
    TEST(the_last_entry_of_a_key_counts_in_each_item),
    TEST(the_first_invalid_item_is_reported),
    TEST(keys_that_are_unset_or_unknown),
    TEST(other_messages_are_not_lists_of_examples),
    TEST(unknown_groups_within_items_count_from_their_depth),
    TEST(damaged_items_leave_no_output),
    TEST(blocks_of_items_cut_anywhere_give_the_same),
};

}  // namespace

int main() { return checks::run(tests); }
