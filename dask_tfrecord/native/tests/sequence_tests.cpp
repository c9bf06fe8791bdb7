// Tests of SequenceExamples: steps of feature lists as columns, and faults of those that do not fit.
#include "checks.hpp"
#include "column_support.hpp"

namespace {

using namespace support;
using dtf::Cast;
using dtf::Fault;
using dtf::Kind;
using dtf::ValueLayout;
using dtf::Message;
using dtf::Stop;
using Ints = std::vector<std::int64_t>;

Fed fed_sequences(const Specs& specs, const std::vector<std::string>& payloads, bool closed = false) {
    return Fed(specs, payloads, closed, Message::sequence_example);
}

// A record of one feature list `k`.
std::string with_list(std::string_view list) { return delimited(2, entry("k", list)); }

dtf::ColumnSpec fixed_ints(std::size_t count) { return steps(spec("k", Kind::int64, ValueLayout::fixed, count)); }
dtf::ColumnSpec ragged_ints(std::size_t count = 1) { return steps(spec("k", Kind::int64, ValueLayout::ragged, count)); }

// ---- what steps become

void steps_of_one_size() {
    Fed fed = fed_sequences({fixed_ints(2)}, {with_list(feature_list({int64_list({1, 2}), int64_list({3, 4})})),
                                              with_list(""), with_list(feature_list({int64_list({5, 6})}))});
    CHECK(fed.whole() && fed.walk.records == 3);
    CHECK(items<std::int64_t>(fed.column().values) == Ints{1, 2, 3, 4, 5, 6});
    CHECK(items<std::int64_t>(fed.column().row_splits) == Ints{0, 2, 2, 3});  // in steps
    CHECK(fed.column().step_splits.size() == 0);
    Fed bytes = fed_sequences({steps(spec("k", Kind::bytes, ValueLayout::fixed))},
                              {with_list(feature_list({bytes_list({"ab"}), bytes_list({""}), bytes_list({"c"})}))});
    CHECK(bytes.whole() && text(bytes.column().values) == "abc");
    CHECK(items<std::int64_t>(bytes.column().value_splits) == Ints{0, 2, 2, 3});
    CHECK(items<std::int64_t>(bytes.column().row_splits) == Ints{0, 3});
    Fed none = fed_sequences({steps(spec("k", Kind::floats, ValueLayout::fixed, 0))}, {with_list(feature_list({"", ""}))});
    CHECK(none.whole() && items<std::int64_t>(none.column().row_splits) == Ints{0, 2});
}

void steps_of_any_size() {
    Fed fed = fed_sequences({ragged_ints()},
                            {with_list(feature_list({int64_list({1}), "", int64_list({2, 3})})), with_list(""),
                             with_list(feature_list({int64_list({}), int64_list({4})}))});
    CHECK(fed.whole());
    CHECK(items<std::int64_t>(fed.column().values) == Ints{1, 2, 3, 4});
    CHECK(items<std::int64_t>(fed.column().step_splits) == Ints{0, 1, 1, 3, 3, 4});  // in values
    CHECK(items<std::int64_t>(fed.column().row_splits) == Ints{0, 3, 3, 5});         // in steps
    Fed bytes = fed_sequences({steps(spec("k", Kind::bytes, ValueLayout::ragged))},
                              {with_list(feature_list({bytes_list({"a", "bc"}), "", bytes_list({""})}))});
    CHECK(bytes.whole() && text(bytes.column().values) == "abc");
    CHECK(items<std::int64_t>(bytes.column().value_splits) == Ints{0, 1, 3, 3});
    CHECK(items<std::int64_t>(bytes.column().step_splits) == Ints{0, 2, 2, 3});
}

// The field 1 of a list, with a size of five bytes.
std::string long_sized(std::string_view content) { return tag(1, 2) + varint(content.size(), 5).append(content); }

void integers_of_every_form() {
    Random random(1);
    for (std::size_t count = 0; count < 20; ++count) {
        Ints values;
        std::string packed, apart, padded;
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint64_t value = random.next() >> random.below(64);
            values.push_back(static_cast<std::int64_t>(value));
            packed += varint(value);
            apart += tag(1, 0) + varint(value);
            padded += varint(value, 1 + random.below(10));
        }
        const std::string usual = delimited(3, delimited(1, packed));
        Ints all = values;
        all.insert(all.end(), values.begin(), values.end());
        all.insert(all.end(), values.begin(), values.end());
        const auto n = static_cast<std::int64_t>(count);
        for (const std::string& form : {usual, delimited(3, apart), delimited(3, delimited(1, padded)),
                                        delimited(3, long_sized(packed)), usual + delimited(5, ""), delimited(5, "") + usual}) {
            Fed fed = fed_sequences({ragged_ints()}, {with_list(feature_list({usual, form, usual}))});
            CHECK(fed.whole() && items<std::int64_t>(fed.column().values) == all);
            CHECK(items<std::int64_t>(fed.column().step_splits) == Ints({0, n, 2 * n, 3 * n}));
        }
        if (count == 0) continue;
        packed.back() = static_cast<char>(packed.back() | 0x80);  // no end
        Fed torn = fed_sequences({ragged_ints()}, {with_list(feature_list({usual, delimited(3, delimited(1, packed))}))});
        CHECK(torn.fault() == Fault::malformed);
    }
}

void floats_of_every_form() {
    Random random(1);
    for (const std::size_t count : {0u, 1u, 2u, 16u, 29u, 30u, 31u, 32u, 33u, 4093u, 5000u}) {
        const dtf::ColumnSpec column = steps(spec("k", Kind::floats, ValueLayout::fixed, count));
        std::string packed, apart;
        for (std::size_t i = 0; i < count; ++i) {
            const std::string bits = little_endian(static_cast<std::uint32_t>(random.next()));
            packed += bits;
            apart += tag(1, 5) + bits;
        }
        const std::string usual = delimited(2, delimited(1, packed));
        for (const std::string& form : {usual, delimited(2, apart), delimited(2, long_sized(packed)), usual + delimited(5, "")}) {
            Fed fed = fed_sequences({column}, {with_list(feature_list({usual, form, usual}))});
            CHECK(fed.whole() && text(fed.column().values) == packed + packed + packed);
            CHECK(items<std::int64_t>(fed.column().row_splits) == Ints({0, 3}));
        }
        const std::string more = delimited(2, delimited(1, packed + "more"));
        Fed refused = fed_sequences({column}, {with_list(feature_list({usual, more, usual}))});
        CHECK(refused.fault() == Fault::count && refused.decoder.problem().step == 1);
        CHECK(refused.decoder.problem().found == count + 1);
    }
}

void steps_are_cast() {
    const std::string list = feature_list({float_list({1, 2}), float_list({-0.0f, 4})});
    Fed fixed = fed_sequences({steps(cast_to(spec("k", Kind::floats, ValueLayout::fixed, 2), Cast::float16))},
                              {with_list(list), with_list(list)});
    const std::string once = as_stored<std::uint16_t>({0x3c00, 0x4000, 0x8000, 0x4400});
    CHECK(fixed.whole() && text(fixed.column().values) == once + once);
    Fed ragged = fed_sequences({steps(cast_to(spec("k", Kind::floats, ValueLayout::ragged), Cast::float64))},
                               {with_list(list), with_list(""), with_list(list)});
    CHECK(ragged.whole() && items<double>(ragged.column().values) == std::vector<double>{1, 2, 0, 4, 1, 2, 0, 4});
    CHECK(items<std::int64_t>(ragged.column().step_splits) == Ints{0, 2, 4, 6, 8});
    const auto small = cast_to(ragged_ints(), Cast::uint8);
    Fed refused = fed_sequences({small}, {with_list(feature_list({int64_list({1}), int64_list({2, 256, -1})}))});
    CHECK(refused.fault() == Fault::cast && refused.decoder.problem().found == 256);
}

void lists_that_are_missing() {
    const std::vector<std::string> lacking{"", delimited(1, ""), delimited(2, ""), delimited(2, entry("other", "")),
                                           delimited(1, entry("k", int64_list({1, 2})))};
    for (const std::string& record : lacking) {
        for (const dtf::ColumnSpec& column : {fixed_ints(2), ragged_ints()}) {
            Fed refused = fed_sequences({column}, {record});
            CHECK(refused.fault() == Fault::missing && refused.decoder.problem().step == -1);
            Fed fed = fed_sequences({optional(column)}, {with_list(feature_list({int64_list({1, 2})})), record,
                                                         with_list(feature_list({int64_list({3, 4})}))});
            CHECK(fed.whole() && items<std::int64_t>(fed.column().values) == Ints{1, 2, 3, 4});
            CHECK(items<std::int64_t>(fed.column().row_splits) == Ints{0, 1, 1, 2});
        }
    }
    // A list without steps is there, and an entry without a value is one.
    for (const std::string& list : {entry("k", ""), delimited(1, delimited(1, "k"))}) {
        CHECK(fed_sequences({fixed_ints(2)}, {delimited(2, list) + delimited(1, entry("x", ""))}).whole());
    }
}

// ---- several entries, several values, several kinds

void the_last_kind_of_a_step_counts() {
    const std::string turned = int64_list({7, 7}) + float_list({1}) + int64_list({3}) + int64_list({4});
    const std::string record = with_list(feature_list({int64_list({1, 2}), turned, int64_list({5, 6})}));
    for (const dtf::ColumnSpec& column : {fixed_ints(2), ragged_ints(), ragged_ints(2)}) {
        Fed fed = fed_sequences({column}, {record});
        CHECK(fed.whole() && items<std::int64_t>(fed.column().values) == Ints{1, 2, 3, 4, 5, 6});
    }
    Fed bytes = fed_sequences({steps(spec("k", Kind::bytes, ValueLayout::ragged))},
                              {with_list(feature_list({bytes_list({"a"}),
                                                       bytes_list({"x", "y"}) + float_list({}) + bytes_list({"b"})}))});
    CHECK(bytes.whole() && text(bytes.column().values) == "ab");
    CHECK(items<std::int64_t>(bytes.column().step_splits) == Ints{0, 1, 2});
    Fed other = fed_sequences({ragged_ints()}, {with_list(feature_list({int64_list({1}) + float_list({})}))});
    CHECK(other.whole() && other.column().values.size() == 0);
    const std::string floats = int64_list({1}) + float_list({}) + float_list({1});
    Fed refused = fed_sequences({ragged_ints()}, {with_list(feature_list({floats}))});
    CHECK(refused.fault() == Fault::kind && refused.decoder.problem().found == 2);
}

void the_last_entry_of_a_key_counts_whole() {
    const std::string first = entry("k", feature_list({int64_list({9, 9}), int64_list({9, 9}), int64_list({9, 9})}));
    const std::string last = entry("k", feature_list({int64_list({1, 2})}));
    for (const dtf::ColumnSpec& column : {fixed_ints(2), ragged_ints(), cast_to(ragged_ints(), Cast::int16)}) {
        Fed fed = fed_sequences({column}, {delimited(2, first + last), delimited(2, first) + delimited(2, last),
                                           delimited(2, first + entry("k", "")), delimited(2, last)});
        CHECK(fed.whole() && fed.column().values.size() == 3 * 2 * (column.cast == Cast::none ? 8u : 2u));
        CHECK(items<std::int64_t>(fed.column().row_splits) == Ints{0, 1, 2, 2, 3});
        if (fed.column().has_steps()) CHECK(items<std::int64_t>(fed.column().step_splits) == Ints{0, 2, 4, 6});
    }
}

void the_values_of_one_entry_are_joined() {
    const std::string one = feature_list({int64_list({1, 2})});
    const std::string two = feature_list({int64_list({3, 4}), int64_list({5, 6})});
    const std::string key = delimited(1, "k");
    const std::vector<std::string> entries{
        delimited(1, key + delimited(2, one + two)), delimited(1, key + delimited(2, one) + delimited(2, two)),
        delimited(1, delimited(2, one) + key + delimited(2, two)),
        delimited(1, delimited(1, "other") + delimited(2, one) + delimited(2, "") + delimited(2, two) + key)};
    for (const dtf::ColumnSpec& column : {fixed_ints(2), ragged_ints(2)}) {
        for (const std::string& joined : entries) {
            Fed fed = fed_sequences({column}, {delimited(2, joined)});
            CHECK(fed.whole() && items<std::int64_t>(fed.column().values) == Ints{1, 2, 3, 4, 5, 6});
            CHECK(items<std::int64_t>(fed.column().row_splits) == Ints{0, 3});
        }
    }
}

void overridden_faults_are_ignored() {
    const std::string good = entry("k", feature_list({int64_list({1, 2})}));
    const std::vector<std::string> bad{feature_list({int64_list({1})}), feature_list({int64_list({1, 2, 3}), ""}),
                                       feature_list({float_list({1, 2})}), feature_list({int64_list({999, 999})}),
                                       feature_list({"", bytes_list({"\xff"})})};
    for (const dtf::ColumnSpec& column : {fixed_ints(2), ragged_ints(2), cast_to(fixed_ints(2), Cast::int8)}) {
        for (const std::string& list : bad) {
            Fed fed = fed_sequences({column}, {delimited(2, entry("k", list) + good)});
            CHECK(fed.whole() && items<std::int64_t>(fed.column().row_splits) == Ints{0, 1});
            CHECK(fed.column().values.size() == 2 * (column.cast == Cast::none ? 8u : 1u));
        }
    }
    const std::string kept = good + entry("k", feature_list({int64_list({1, 2}), int64_list({1})}));
    CHECK(fed_sequences({fixed_ints(2)}, {delimited(2, kept)}).decoder.problem().step == 1);
}

// ---- what is refused

void the_first_invalid_step_is_reported() {
    const std::string good = int64_list({1, 2});
    struct Case {
        Fault fault;
        std::int64_t step;
        std::uint64_t found;
        std::string list;
    };
    const std::vector<Case> cases{
        {Fault::count, 0, 1, feature_list({int64_list({1}), good})},
        {Fault::count, 1, 3, feature_list({good, int64_list({1, 2, 3}), int64_list({})})},
        {Fault::kind, 2, 2, feature_list({good, good, float_list({1, 2}), int64_list({1})})},
        {Fault::kind, 0, 1, feature_list({bytes_list({"a"}), good})},
        {Fault::count, 3, 5, feature_list({good, good, good, int64_list({1, 2}) + int64_list({3, 4, 5}), good})},
    };
    for (const Case& one : cases) {
        for (const dtf::ColumnSpec& column : {fixed_ints(2), ragged_ints(2)}) {
            Fed fed = fed_sequences({spec("x", Kind::int64, ValueLayout::ragged), column}, {with_list(one.list)});
            const dtf::Problem& problem = fed.decoder.problem();
            CHECK(fed.fault() == one.fault && problem.column == 1);
            CHECK(problem.step == one.step && problem.found == one.found);
        }
    }
    // A step without values does not have two.
    Fed unset = fed_sequences({fixed_ints(2)}, {with_list(feature_list({good, ""}))});
    CHECK(unset.fault() == Fault::count && unset.decoder.problem().step == 1 && unset.decoder.problem().found == 0);
    Fed later = fed_sequences({fixed_ints(2)}, {with_list(feature_list({good, ""}))});
    later.feed({""});
    CHECK(later.fault() == Fault::missing && later.decoder.problem().step == -1);  // of the record before
}

void text_in_steps() {
    const auto words = steps(text_spec("k", ValueLayout::ragged));
    const std::string good = feature_list({bytes_list({"a", "\xc3\xa4"}), bytes_list({"b"})});
    CHECK(fed_sequences({words}, {with_list(good), with_list(good)}).whole());
    for (const std::string& bad : {feature_list({bytes_list({"a"}), bytes_list({"\xc3", "\xa4"})}),
                                   feature_list({bytes_list({"\xff"})})}) {
        CHECK(fed_sequences({words}, {with_list(good), with_list(bad)}).fault() == Fault::utf8);
        CHECK(fed_sequences({words}, {delimited(2, entry("k", bad) + entry("k", good))}).whole());
    }
}

Specs every_list() {
    return {spec("x", Kind::int64, ValueLayout::fixed),
            optional(steps(spec("i", Kind::int64, ValueLayout::fixed, 2))),
            optional(steps(cast_to(spec("r", Kind::int64, ValueLayout::ragged), Cast::uint8))),
            optional(steps(cast_to(spec("f", Kind::floats, ValueLayout::fixed), Cast::float16))),
            optional(steps(text_spec("b", ValueLayout::ragged))),
            steps(spec("s", Kind::none, ValueLayout::skipped)),
            spec("i", Kind::bytes, ValueLayout::ragged)};  // a key of its own, in the context
}

std::string every_step(std::int64_t number) {
    const std::string label = std::to_string(number);
    return sequence_example(
        entry("x", int64_list({number})) + entry("i", bytes_list({label})),
        entry("i", feature_list({int64_list({number, 1}), int64_list({2, 3})})) +
            entry("r", feature_list({"", int64_list({1, 2, 3}), int64_list({})})) + entry("s", "no list") +
            entry("f", feature_list({float_list({1}), float_list({2})})) +
            entry("b", feature_list({bytes_list({label, ""}), bytes_list({"yz"})})));
}

void a_refused_record_leaves_no_output_in_any_list() {
    const std::vector<std::pair<Fault, std::string>> bad{
        {Fault::count, entry("i", feature_list({int64_list({1, 2}), int64_list({3})}))},
        {Fault::kind, entry("r", feature_list({int64_list({1}), float_list({3})}))},
        {Fault::cast, entry("r", feature_list({int64_list({1}), int64_list({3, 256})}))},
        {Fault::cast, entry("f", feature_list({float_list({1}), float_list({1e6f})}))},
        {Fault::utf8, entry("b", feature_list({bytes_list({"a"}), bytes_list({"b", "\xff"})}))},
        {Fault::unknown_key, entry("x", feature_list({int64_list({1})}))},  // known in the context only
        {Fault::malformed, entry("b", feature_list({bytes_list({"a"}), "\x0a\x05x"}))},
        {Fault::malformed, entry("r", feature_list({int64_list({1})}) + "\x0a")},
    };
    const std::string good = every_step(1), other = every_step(2);
    Fed one = fed_sequences(every_list(), {good}, true), two = fed_sequences(every_list(), {good, other}, true);
    CHECK(one.whole() && two.whole());
    for (const auto& [fault, entries] : bad) {
        for (const std::string& payload : {good + delimited(2, entries), delimited(2, entries) + tag(1, 7)}) {
            Fed fed = fed_sequences(every_list(), {good, payload}, true);
            CHECK(fed.fault() != Fault::none && fed.walk.records == 1);
            CHECK(contents(fed.decoder) == contents(one.decoder));
            fed.feed({payload});
            CHECK(contents(fed.decoder) == contents(one.decoder));
            fed.feed({other});
            CHECK(fed.whole() && contents(fed.decoder) == contents(two.decoder));
        }
        CHECK(fed_sequences(every_list(), {good + delimited(2, entries)}, true).fault() == fault);
    }
}

void keys_of_lists_and_context_are_apart() {
    const std::string unknown = entry("new", feature_list({int64_list({1})}));
    Fed open = fed_sequences(every_list(), {every_step(1) + delimited(2, unknown)});
    CHECK(open.whole());
    Fed closed = fed_sequences(every_list(), {every_step(1) + delimited(2, unknown)}, true);
    CHECK(closed.fault() == Fault::unknown_key && closed.decoder.problem().text == "new");
    CHECK(fed_sequences(every_list(), {every_step(1) + delimited(1, unknown)}, true).fault() == Fault::unknown_key);
    // A list where a feature of the same key is, and the other way round.
    CHECK(fed_sequences({ragged_ints()}, {delimited(1, entry("k", int64_list({1})))}).fault() == Fault::missing);
    CHECK(fed_sequences({spec("k", Kind::int64, ValueLayout::fixed)},
                        {with_list(feature_list({int64_list({1})}))}).fault() == Fault::missing);
    Fed invalid = fed_sequences({}, {delimited(2, entry("\xff", ""))});
    CHECK(invalid.fault() == Fault::malformed);
}

void examples_and_sequence_examples() {
    const auto feature = spec("k", Kind::int64, ValueLayout::fixed);
    const std::string plain = example(entry("k", int64_list({5}))), lists = plain + with_list("");
    // An Example is a SequenceExample without lists.
    Fed context = fed_sequences({feature}, {plain});
    CHECK(context.whole() && items<std::int64_t>(context.column().values) == Ints{5});
    Fed without = fed_sequences({feature, ragged_ints()}, {plain});
    CHECK(without.fault() == Fault::missing && without.decoder.problem().column == 1);
    CHECK(fed_sequences({feature, optional(ragged_ints())}, {plain}).whole());
    // A SequenceExample is refused as Example, even with empty lists.
    CHECK(Fed({feature}, {lists}).fault() == Fault::not_example);
    CHECK(Fed({feature}, {plain + delimited(2, "")}).fault() == Fault::not_example);
    CHECK(Fed({}, {delimited(2, "")}).fault() == Fault::not_example);
    CHECK(fed_sequences({}, {delimited(2, ""), "", delimited(1, ""), delimited(2, "") + delimited(1, "")}).whole());
    // Nor is another message that happens to be legal.
    for (const std::string& foreign : {delimited(3, "x"), tag(1, 0) + varint(5), delimited(2, tag(2, 0) + varint(1))}) {
        CHECK(fed_sequences({optional(ragged_ints())}, {foreign}).fault() == Fault::not_example);
    }
    CHECK(fed_sequences({ragged_ints()}, {with_list("") + delimited(9, "unknown")}).whole());
    CHECK(fed_sequences({ragged_ints()}, {tag(2, 0) + varint(1) + with_list("")}).whole());
}

// ---- the wire

void unknown_groups_within_lists_count_from_their_depth() {
    const auto groups = [](std::size_t depth) {
        std::string field;
        for (std::size_t i = 0; i < depth; ++i) field += tag(9, 3);
        for (std::size_t i = 0; i < depth; ++i) field += tag(9, 4);
        return field;
    };
    const std::string list = delimited(1, varint(5));
    for (std::size_t level = 0; level < 6; ++level) {
        const auto record = [&](std::size_t depth) {
            const auto at = [&](std::size_t place) { return place == level ? groups(depth) : std::string(); };
            const std::string step = at(4) + delimited(3, at(5) + list);
            const std::string map_entry = at(2) + delimited(1, "k") + delimited(2, at(3) + delimited(1, step));
            return at(0) + delimited(2, at(1) + delimited(1, map_entry));
        };
        CHECK(fed_sequences({ragged_ints()}, {record(100 - level)}).whole());
        CHECK(fed_sequences({ragged_ints()}, {record(101 - level)}).fault() == Fault::malformed);
    }
}

void blocks_of_lists_cut_anywhere_give_the_same() {
    std::string bytes;
    for (std::int64_t i = 0; i < 3; ++i) bytes += framed(every_step(i));
    Fed whole = fed_sequences(every_list(), {every_step(0), every_step(1), every_step(2)}, true);
    CHECK(whole.whole());
    for (std::size_t piece = 1; piece < bytes.size(); piece = piece < 20 ? piece + 1 : piece + 37) {
        dtf::Decoder decoder(every_list(), true, true, Message::sequence_example);
        std::string carried;
        for (std::size_t at = 0; at < bytes.size(); at += piece) {
            carried += bytes.substr(at, piece);
            const Exact block(carried);
            carried.erase(0, static_cast<std::size_t>(decoder.feed(block.data(), block.size(), UINT64_MAX).consumed));
        }
        CHECK(carried.empty() && contents(decoder) == contents(whole.decoder));
    }
}

void damaged_lists_leave_no_output() {
    const std::string good = every_step(7);
    const Flips flips = flip_every_bit(good, [](const std::vector<std::string>& payloads) {
        return fed_sequences(every_list(), payloads, true);
    });
    CHECK(flips.wrong == 0 && flips.refused > good.size());
}

const checks::Test tests[] = {
    TEST(steps_of_one_size),
    TEST(steps_of_any_size),
    TEST(integers_of_every_form),
    TEST(floats_of_every_form),
    TEST(steps_are_cast),
    TEST(lists_that_are_missing),
    TEST(the_last_kind_of_a_step_counts),
    TEST(the_last_entry_of_a_key_counts_whole),
    TEST(the_values_of_one_entry_are_joined),
    TEST(overridden_faults_are_ignored),
    TEST(the_first_invalid_step_is_reported),
    TEST(text_in_steps),
    TEST(a_refused_record_leaves_no_output_in_any_list),
    TEST(keys_of_lists_and_context_are_apart),
    TEST(examples_and_sequence_examples),
    TEST(unknown_groups_within_lists_count_from_their_depth),
    TEST(blocks_of_lists_cut_anywhere_give_the_same),
    TEST(damaged_lists_leave_no_output),
};

}  // namespace

int main() { return checks::run(tests); }
