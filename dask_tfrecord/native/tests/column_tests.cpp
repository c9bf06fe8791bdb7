// Tests of columns that convert their values (casts, default values, tensors), and of refused records.
#include "checks.hpp"
#include "column_support.hpp"

namespace {

using namespace support;
using dtf::Cast;
using dtf::DataType;
using dtf::Fault;
using dtf::Kind;
using dtf::ValueLayout;
using dtf::Stop;
using Ints = std::vector<std::int64_t>;

std::string ints_of(std::string_view key, std::initializer_list<std::int64_t> values) {
    return entry(key, int64_list(values));
}

std::string floats_of(std::string_view key, std::initializer_list<float> values) {
    return entry(key, float_list(values));
}

std::string bytes_of_key(std::string_view key, std::initializer_list<std::string_view> values) {
    return entry(key, bytes_list(values));
}

// ---- casts

void numbers_are_cast_record_by_record() {
    const auto fixed = spec("k", Kind::int64, ValueLayout::fixed, 2), ragged = spec("k", Kind::int64, ValueLayout::ragged);
    Fed small({cast_to(fixed, Cast::int8)}, {example(ints_of("k", {-128, 127})), example(ints_of("k", {0, -1}))});
    CHECK(small.whole() && text(small.column().values) == std::string("\x80\x7f\0\xff", 4));
    Fed rows({cast_to(ragged, Cast::uint16)}, {example(ints_of("k", {65535})), "", example(ints_of("k", {1, 2}))});
    CHECK(rows.whole() && text(rows.column().values) == as_stored<std::uint16_t>({65535, 1, 2}));
    CHECK(items<std::int64_t>(rows.column().row_splits) == Ints{0, 1, 1, 3});
    Fed yes({cast_to(ragged, Cast::boolean)}, {example(ints_of("k", {0, 1, 1}))});
    CHECK(yes.whole() && text(yes.column().values) == std::string("\0\1\1", 3));
    const auto floats = spec("k", Kind::floats, ValueLayout::fixed, 2);
    const std::string record = example(floats_of("k", {1, -0.0f}));
    CHECK(text(Fed({cast_to(floats, Cast::float16)}, {record}).column().values) ==
          as_stored<std::uint16_t>({0x3c00, 0x8000}));
    CHECK(text(Fed({cast_to(floats, Cast::bfloat16)}, {record}).column().values) ==
          as_stored<std::uint16_t>({0x3f80, 0x8000}));
    CHECK(text(Fed({cast_to(floats, Cast::float64)}, {record}).column().values) == as_stored<double>({1, -0.0}));
}

void integers_and_floats_mix() {
    const auto fixed = spec("k", Kind::floats, ValueLayout::fixed), ragged = spec("k", Kind::floats, ValueLayout::ragged);
    const std::vector<std::string> records{
        example(ints_of("k", {3})), example(floats_of("k", {0.5f})),
        example(entry("k", float_list({7}) + int64_list({-4}))),               // the last kind counts
        example(ints_of("k", {1, 2}) + floats_of("k", {8})),                   // the last entry counts
        example(entry("k", delimited(3, tag(1, 0) + varint(5)))),              // not packed
    };
    for (const dtf::ColumnSpec& column : {fixed, ragged}) {
        Fed doubles({mixed(column, Cast::float64)}, records);
        CHECK(doubles.whole() && text(doubles.column().values) == as_stored<double>({3, 0.5, -4, 8, 5}));
        Fed floats({mixed(column)}, records);
        CHECK(floats.whole() && text(floats.column().values) == as_stored<float>({3, 0.5f, -4, 8, 5}));
    }
    Fed rows({mixed(ragged)}, {example(ints_of("k", {1, 2})), "", example(floats_of("k", {0.5f})), example(entry("k", bytes_list({})))});
    CHECK(rows.whole() && text(rows.column().values) == as_stored<float>({1, 2, 0.5f}));
    CHECK(items<std::int64_t>(rows.column().row_splits) == Ints{0, 2, 2, 3, 3});
    for (const auto layout : {ValueLayout::fixed, ValueLayout::ragged}) {
        const dtf::ColumnSpec column = steps(mixed(spec("k", Kind::floats, layout), Cast::float64));
        const std::string list = feature_list({int64_list({1}), float_list({0.5f}), int64_list({2})});
        const std::string torn = feature_list({int64_list({1}), int64_list({(std::int64_t{1} << 53) + 1}), float_list({2})});
        Fed read({column}, {sequence_example("", entry("k", torn) + entry("k", list))}, false, dtf::Message::sequence_example);
        CHECK(read.whole() && text(read.column().values) == as_stored<double>({1, 0.5, 2}));
        Fed refused({column}, {sequence_example("", entry("k", torn))}, false, dtf::Message::sequence_example);
        CHECK(refused.fault() == Fault::cast && refused.decoder.problem().step == 1 && refused.column().values.size() == 0);
        Fed of_items({column}, {example_list({ints_of("k", {1}), floats_of("k", {0.5f}), ints_of("k", {2})})}, false,
                     dtf::Message::example_list);
        CHECK(of_items.whole() && text(of_items.column().values) == as_stored<double>({1, 0.5, 2}));
    }
    // Integers are aligned behind an odd number of floats that do not fit.
    const std::string odd = feature_list({float_list({1, 2, 3}), int64_list({1, 2}), int64_list({3, 4, 5, 6})});
    Fed misfit({steps(mixed(spec("k", Kind::floats, ValueLayout::fixed, 2)))}, {sequence_example("", entry("k", odd))}, false,
               dtf::Message::sequence_example);
    CHECK(misfit.fault() == Fault::count && misfit.decoder.problem().step == 0);
    Fed bytes({mixed(fixed)}, {example(bytes_of_key("k", {"1"}))});
    CHECK(bytes.fault() == Fault::kind && bytes.decoder.problem().found == 1);
}

void empty_lists_of_another_kind_are_empty() {
    const auto ints = spec("k", Kind::int64, ValueLayout::ragged);
    for (const std::string& empty : {bytes_list({}), float_list({}), delimited(2, ""), delimited(2, delimited(1, "")),
                                     int64_list({5}) + float_list({})}) {
        Fed rows({ints}, {example(ints_of("k", {1})), example(entry("k", empty)), example(ints_of("k", {2}))});
        CHECK(rows.whole() && items<std::int64_t>(rows.column().values) == Ints{1, 2});
        CHECK(items<std::int64_t>(rows.column().row_splits) == Ints{0, 1, 1, 2});
        const auto fixed = spec("k", Kind::int64, ValueLayout::fixed);
        Fed filled({with_default(fixed, {as_stored<std::int64_t>({7})})}, {example(entry("k", empty))});
        CHECK(filled.whole() && items<std::int64_t>(filled.column().values) == Ints{7});
        Fed none({fixed}, {example(entry("k", empty))});
        CHECK(none.fault() == Fault::count && none.decoder.problem().found == 0);
    }
    Fed two({ints}, {example(entry("k", float_list({1}) + float_list({})))});  // both are one list
    CHECK(two.fault() == Fault::kind);
    Fed raw({spec("k", Kind::bytes, ValueLayout::raw)}, {example(entry("k", float_list({})))});
    CHECK(raw.fault() == Fault::count && raw.decoder.problem().found == 0);
}

void values_that_a_cast_would_change_are_refused() {
    struct Case {
        dtf::ColumnSpec spec;
        std::string feature;
        std::uint64_t found;
    };
    const auto ints = [](Cast cast) { return cast_to(spec("k", Kind::int64, ValueLayout::ragged), cast); };
    const auto floats = [](Cast cast) { return cast_to(spec("k", Kind::floats, ValueLayout::ragged), cast); };
    const auto exact = [](Cast cast) { return mixed(spec("k", Kind::floats, ValueLayout::ragged), cast); };
    const std::vector<Case> cases{
        {exact(Cast::float64), int64_list({INT64_MAX}), INT64_MAX},
        {ints(Cast::boolean), int64_list({1, 2, 3}), 2},
        {ints(Cast::int8), int64_list({127, 128}), 128},
        {ints(Cast::int8), int64_list({-129}), static_cast<std::uint64_t>(-129)},
        {ints(Cast::uint64), int64_list({5, -1}), UINT64_MAX},
        {ints(Cast::uint32), int64_list({4294967295, 4294967296}), 4294967296u},
        {floats(Cast::float16), float_list({65504, 65520}), 0x477ff000},
        {floats(Cast::bfloat16), float_list({3.4028235e38f}), 0x7f7fffff},
    };
    for (const Case& one : cases) {
        Fed fed({one.spec}, {example(entry("k", one.feature))});
        CHECK(fed.fault() == Fault::cast && fed.decoder.problem().column == 0);
        CHECK(fed.decoder.problem().found == one.found && fed.column().values.size() == 0);
        // An overridden entry is not cast.
        const std::string last = entry("k", one.spec.kind == Kind::int64 ? int64_list({1}) : float_list({1}));
        Fed overridden({one.spec}, {example(entry("k", one.feature) + last)});
        CHECK(overridden.whole() && overridden.column().values.size() == dtf::item_size(one.spec.cast));
    }
}

void counted_values_are_not_cast() {
    const auto two = cast_to(spec("k", Kind::int64, ValueLayout::fixed, 2), Cast::uint8);
    for (const std::string& values : {int64_list({1}), int64_list({1, 999, 3}), int64_list({})}) {
        CHECK(Fed({two}, {example(entry("k", values))}).fault() == Fault::count);
    }
    Fed kinds({two}, {example(entry("k", int64_list({999, 999}) + float_list({1}) + int64_list({4, 5})))});
    CHECK(kinds.whole() && text(kinds.column().values) == "\4\5");
    Fed parts({two}, {example(entry("k", int64_list({4}) + int64_list({5})))});
    CHECK(parts.whole() && text(parts.column().values) == "\4\5");
}

// ---- default values

void records_without_values_take_the_default() {
    const std::string minus_one = as_stored<std::int64_t>({-1, -2});
    const std::vector<std::string> records{example(ints_of("k", {1, 2})), example(""), "", example(entry("k", "")),
                                           example(ints_of("k", {})), example(ints_of("k", {9, 9}) + entry("k", "")),
                                           example(entry("k", "") + ints_of("k", {3, 4})),
                                           example(entry("k", float_list({5}) + int64_list({})))};
    Fed fed({with_default(spec("k", Kind::int64, ValueLayout::fixed, 2), {minus_one})}, records);
    CHECK(fed.whole());
    CHECK(items<std::int64_t>(fed.column().values) == Ints{1, 2, -1, -2, -1, -2, -1, -2, -1, -2, -1, -2, 3, 4, -1, -2});
    // As the column stores it: no cast goes over it.
    const auto narrow = cast_to(spec("k", Kind::int64, ValueLayout::fixed, 2), Cast::int16);
    Fed cast({with_default(narrow, {as_stored<std::int16_t>({-1, -2})})}, records);
    CHECK(cast.whole() && items<std::int16_t>(cast.column().values) ==
                              std::vector<std::int16_t>{1, 2, -1, -2, -1, -2, -1, -2, -1, -2, -1, -2, 3, 4, -1, -2});
    const auto half = cast_to(spec("k", Kind::floats, ValueLayout::fixed), Cast::float16);
    Fed halves({with_default(half, {as_stored<std::uint16_t>({0x7e00})})}, {"", example(floats_of("k", {1}))});
    CHECK(halves.whole() && text(halves.column().values) == as_stored<std::uint16_t>({0x7e00, 0x3c00}));
}

void bytes_take_the_default_value_by_value() {
    Fed fed({with_default(spec("k", Kind::bytes, ValueLayout::fixed, 3), {"ab", "", "c"})},
            {"", example(bytes_of_key("k", {"x", "y", "z"})), example(bytes_of_key("k", {}))});
    CHECK(fed.whole() && text(fed.column().values) == "abcxyzabc");
    CHECK(items<std::int64_t>(fed.column().value_splits) == Ints{0, 2, 2, 3, 4, 5, 6, 8, 8, 9});
    Fed empty({with_default(text_spec("k", ValueLayout::fixed), {""})}, {"", ""});
    CHECK(empty.whole() && items<std::int64_t>(empty.column().value_splits) == Ints{0, 0, 0});
}

void a_default_replaces_only_missing_values() {
    const auto ints = with_default(spec("k", Kind::int64, ValueLayout::fixed, 2), {std::string(16, '\0')});
    CHECK(Fed({ints}, {example(ints_of("k", {1}))}).fault() == Fault::count);
    CHECK(Fed({ints}, {example(ints_of("k", {1, 2, 3}))}).fault() == Fault::count);
    CHECK(Fed({ints}, {example(floats_of("k", {1, 2}))}).fault() == Fault::kind);
    CHECK(Fed({ints}, {example(floats_of("k", {1}))}).fault() == Fault::kind);
    CHECK(Fed({ints}, {delimited(2, "")}).fault() == Fault::not_example);
    CHECK(Fed({spec("k", Kind::int64, ValueLayout::fixed, 2)}, {""}).fault() == Fault::missing);
}

void features_of_no_values_may_be_missing() {
    for (const Kind kind : {Kind::int64, Kind::floats, Kind::bytes}) {
        const auto none = spec("k", kind, ValueLayout::fixed, 0);
        CHECK(Fed({none}, {""}).fault() == Fault::missing);
        Fed fed({optional(none)}, {"", example(entry("k", "")), ""});
        CHECK(fed.whole() && fed.column().values.size() == 0 && fed.walk.records == 3);
        const std::string list = kind == Kind::int64    ? int64_list({1})
                                 : kind == Kind::floats ? float_list({1})
                                                        : bytes_list({"x"});
        CHECK(Fed({optional(none)}, {example(entry("k", list))}).fault() == Fault::count);
    }
}

// ---- tensors

std::string floats_tensor(const Sizes& sizes, std::initializer_list<float> values) {
    return header(DataType::float32, sizes) + content(as_stored(values));
}

void tensors_of_one_shape_fill_their_slots() {
    const auto pairs = tensor_spec("k", DataType::float32, 4, {2});
    Fed fed({pairs}, {example(bytes_of_key("k", {floats_tensor({2}, {1, 2})})),
                      example(bytes_of_key("k", {"no tensor"}) + bytes_of_key("k", {floats_tensor({2}, {3, 4})})),
                      example(entry("k", bytes_list({"x", "y"}) + int64_list({1}) +
                                             bytes_list({floats_tensor({2}, {5, 6})})))});
    CHECK(fed.whole() && text(fed.column().values) == as_stored<float>({1, 2, 3, 4, 5, 6}));
    CHECK(fed.column().shapes.size() == 0 && fed.column().row_splits.size() == 0 && fed.column().slot() == 8);
    const std::string strings = header(DataType::string, {2}) + delimited(8, "ab") + delimited(8, "c");
    Fed texts({tensor_spec("k", DataType::string, 0, {2})},
              {example(bytes_of_key("k", {strings})), example(bytes_of_key("k", {strings}))});
    CHECK(texts.whole() && text(texts.column().values) == "abcabc");
    CHECK(items<std::int64_t>(texts.column().value_splits) == Ints{0, 2, 3, 5, 6});
}

void tensors_of_any_shape_report_their_shape() {
    Fed fed({tensor_spec("k", DataType::float32, 4, {-1, 2})},
            {example(bytes_of_key("k", {floats_tensor({1, 2}, {1, 2})})),
             example(bytes_of_key("k", {floats_tensor({0, 2}, {})})),
             example(bytes_of_key("k", {floats_tensor({3, 2}, {9, 9, 9, 9, 9, 9})}) +
                     bytes_of_key("k", {floats_tensor({2, 2}, {3, 4, 5, 6})}))});
    CHECK(fed.whole() && text(fed.column().values) == as_stored<float>({1, 2, 3, 4, 5, 6}));
    CHECK(items<std::int64_t>(fed.column().row_splits) == Ints{0, 2, 2, 6});
    CHECK(items<std::int64_t>(fed.column().shapes) == Ints{1, 2, 0, 2, 2, 2});
    const std::string strings = header(DataType::string, {2}) + delimited(8, "ab") + delimited(8, "c");
    Fed texts({tensor_spec("k", DataType::string, 0, {-1})},
              {example(bytes_of_key("k", {strings})), example(bytes_of_key("k", {header(DataType::string, {0})}))});
    CHECK(texts.whole() && items<std::int64_t>(texts.column().value_splits) == Ints{0, 2, 3});
    CHECK(items<std::int64_t>(texts.column().row_splits) == Ints{0, 2, 2});
    CHECK(items<std::int64_t>(texts.column().shapes) == Ints{2, 0});
}

void tensors_that_do_not_fit_report_the_reason() {
    struct Case {
        Fault fault;
        std::uint64_t found;
        std::string shown, entries;
    };
    const std::vector<Case> cases{
        {Fault::missing, 0, "", ""},
        {Fault::missing, 0, "", entry("k", "")},
        {Fault::count, 0, "", bytes_of_key("k", {})},
        {Fault::count, 2, "", bytes_of_key("k", {floats_tensor({2}, {1, 2}), floats_tensor({2}, {1, 2})})},
        {Fault::kind, 3, "", ints_of("k", {1})},
        {Fault::tensor, 0, "", bytes_of_key("k", {"no tensor"})},
        {Fault::tensor, 0, "", bytes_of_key("k", {""})},
        {Fault::tensor, 9, "", bytes_of_key("k", {header(DataType::int64, {2})})},
        {Fault::tensor, 1, "shape (3,)", bytes_of_key("k", {floats_tensor({3}, {1, 2, 3})})},
        {Fault::tensor, 1, "4 bytes of content where shape (2,) of 4 bytes takes 8",
         bytes_of_key("k", {floats_tensor({2}, {1})})},
    };
    for (const Case& one : cases) {
        Fed fed({tensor_spec("k", DataType::float32, 4, {2})}, {example(one.entries)});
        const dtf::Problem& problem = fed.decoder.problem();
        CHECK(fed.fault() == one.fault && problem.column == 0 && problem.found == one.found);
        CHECK(problem.text == one.shown && fed.column().values.size() == 0);
    }
}

// ---- one value

// Features as map entries of one key, in all the ways that one value, or something else, may be written.
std::vector<std::string> ways_to_write_one() {
    std::vector<std::string> features{
        "", int64_list({}), int64_list({1, 2}), float_list({}), float_list({1, 2}), float_list({-0.0f}), bytes_list({}),
        bytes_list({""}), bytes_list({"a", "b"}), bytes_list({"a"}) + bytes_list({"b"}), int64_list({-1}) + tag(9, 0) + "x",
        delimited(3, tag(1, 0) + varint(5)), delimited(2, tag(1, 5) + little_endian(2.0f)), int64_list({1}) + float_list({2}),
        delimited(2, delimited(1, "abc")), delimited(3, delimited(1, "\x80")), delimited(3, delimited(2, "\x01")),
        delimited(3, delimited(1, std::string(11, '\x80') + '\1')), "\x1a\x03\x0a\x02\x01", "\x1a\x02\x0a"};
    for (const std::size_t size : {1u, 15u, 16u, 123u, 124u, 125u, 127u, 128u, 300u}) {
        features.push_back(bytes_list({std::string(size, 's')}));
    }
    for (unsigned bits = 0; bits < 64; ++bits) {
        const std::uint64_t value = std::uint64_t{1} << bits;
        for (const std::uint64_t one : {value, value - 1, ~value}) {
            for (const std::size_t longest : {1u, 2u, 4u, 8u, 9u, 10u, 11u}) {
                features.push_back(delimited(3, delimited(1, varint(one, longest))));
            }
        }
    }
    features.push_back(delimited(3, delimited(1, std::string(9, '\xff') + '\x7f')));  // bits past the 64th
    return features;
}

// An entry that is laid out as no writer does it, so that nothing is known of it before it is read.
std::string turned_round(std::string_view key, std::string_view feature) {
    return delimited(1, delimited(2, feature) + delimited(1, key));
}

void one_value_is_the_same_in_every_encoding() {
    const std::vector<std::pair<dtf::ColumnSpec, std::string>> columns{
        {spec("k", Kind::int64, ValueLayout::fixed), ints_of("k", {7})},
        {spec("k", Kind::floats, ValueLayout::fixed), floats_of("k", {7})},
        {spec("k", Kind::bytes, ValueLayout::fixed), bytes_of_key("k", {"seven"})},
        {with_default(spec("k", Kind::int64, ValueLayout::fixed), {std::string(8, '\7')}), ints_of("k", {7})}};
    std::size_t taken = 0;
    for (const auto& [column, seven] : columns) {
        Fed before({column}, {example(seven)}), again({column}, {example(seven), example(seven)});
        for (const std::string& feature : ways_to_write_one()) {
            for (const std::string& others : {std::string(), ints_of("other", {1})}) {
                const std::string record = example(entry("k", feature) + others);
                Fed slowly({column}, {example(seven), example(turned_round("k", feature) + others)});
                Fed first({column}, {example(seven), example(others + entry("k", feature))});
                Fed expected({column}, {example(seven + others), record});
                for (Fed* quickly : {&first, &expected}) {
                    CHECK(slowly.whole() == quickly->whole());
                    CHECK(contents(slowly.decoder) == contents(quickly->decoder));
                    if (quickly->whole()) {
                        ++taken;
                        continue;
                    }
                    CHECK(said_of(slowly.decoder.problem()) == said_of(quickly->decoder.problem()));
                    CHECK(contents(quickly->decoder) == contents(before.decoder));
                    quickly->feed({example(seven)});
                    CHECK(quickly->whole() && contents(quickly->decoder) == contents(again.decoder));
                }
            }
        }
    }
    CHECK(taken > 8 * 64);
}

void keys_of_any_length_are_expected() {
    for (std::size_t size = 0; size < 140; ++size) {
        const std::string key(size, 'k'), longer = key + 'k', other = key.empty() ? key : key.substr(1) + 'o';
        const Specs columns{spec(key, Kind::int64, ValueLayout::fixed), spec(longer, Kind::floats, ValueLayout::fixed)};
        const std::string record = example(ints_of(key, {1}) + floats_of(longer, {2}));
        Fed two(columns, {record, record}), three(columns, {record, record, record});
        CHECK(two.whole() && three.whole() && three.column().values.size() == 24);
        Fed others(columns, {record, example(ints_of(other, {1}) + floats_of(longer, {2}))});
        CHECK(others.whole() == key.empty());
        Fed turned(columns, {record, example(floats_of(longer, {2}) + ints_of(key, {1}))});
        CHECK(turned.whole() && contents(turned.decoder) == contents(two.decoder));
    }
}

Specs single_columns() {
    return {spec("i", Kind::int64, ValueLayout::fixed), spec("f", Kind::floats, ValueLayout::fixed),
            spec("b", Kind::bytes, ValueLayout::fixed)};
}

void the_last_entry_of_an_expected_key_counts() {
    const std::string one = ints_of("i", {1}) + floats_of("f", {2}) + bytes_of_key("b", {"three"});
    const std::string two = bytes_of_key("b", {""}) + ints_of("i", {-1}) + floats_of("f", {4});
    Fed single(single_columns(), {example(two), example(one), example(two)});
    for (const std::string& others : {one, two, one + one, ints_of("f", {1}) + floats_of("i", {1, 2}) + entry("b", "")}) {
        Fed several(single_columns(), {example(others + two), example(others + one), example(others + two)});
        CHECK(several.whole() && contents(several.decoder) == contents(single.decoder));
    }
    Fed lacking(single_columns(), {example(one), example(one), example(ints_of("i", {1}) + floats_of("f", {2}))});
    CHECK(lacking.fault() == Fault::missing && lacking.decoder.problem().column == 2);
    Fed whole(single_columns(), {example(one), example(one)});
    CHECK(contents(lacking.decoder) == contents(whole.decoder));
}

void damaged_single_values_leave_no_output() {
    const std::string good = example(ints_of("i", {300}) + bytes_of_key("b", {"some"}) + floats_of("f", {1}));
    const Flips flips = flip_every_bit(good, [](const std::vector<std::string>& payloads) {
        return Fed(single_columns(), payloads, true);
    });
    CHECK(flips.wrong == 0 && flips.refused > good.size());
}

// ---- lent memory

Specs sized_columns() {
    return {cast_to(spec("i", Kind::int64, ValueLayout::fixed, 3), Cast::int16),
            cast_to(spec("f", Kind::floats, ValueLayout::fixed), Cast::float64),
            tensor_spec("t", DataType::float32, 4, {2}),
            with_default(cast_to(spec("d", Kind::int64, ValueLayout::fixed, 2), Cast::boolean), {std::string("\1\0", 2)}),
            with_default(spec("e", Kind::floats, ValueLayout::fixed), {as_stored<float>({-1})})};
}

std::string sized_features() {
    return ints_of("i", {1, 2, 3}) + floats_of("f", {4}) + bytes_of_key("t", {floats_tensor({2}, {5, 6})});
}

void borrowed_memory_receives_cast_values() {
    const std::string more = ints_of("i", {9, 9, 9, 9}) + floats_of("f", {1, 2}) + ints_of("d", {1, 1, 1}) +
                             bytes_of_key("t", {floats_tensor({3}, {1, 2, 3})}) + floats_of("e", {1, 2, 3});
    const std::vector<std::string> good{
        sized_features(), more + sized_features() + entry("d", "") + entry("e", ""), sized_features()};
    const std::vector<std::string> bad{ints_of("i", {1, 2, 99999}) + floats_of("f", {4}), sized_features() + more,
                                       sized_features() + ints_of("d", {0, 2}),
                                       sized_features() + bytes_of_key("t", {"no tensor"})};
    Fed grown(sized_columns(), {example(good[0]), example(good[1])});
    CHECK(grown.whole());
    for (std::size_t short_of = 0; short_of < 5; ++short_of) {  // one column has place for one record less
        std::vector<Exact> memory;
        dtf::Decoder decoder(sized_columns(), true, false);
        for (std::size_t i = 0; i < 5; ++i) {
            dtf::Column& column = decoder.columns()[i];
            memory.emplace_back(std::string(column.slot() * (i == short_of ? 2 : 3), '\0'));
            column.values = dtf::Buffer(memory[i].data(), memory[i].size());
        }
        const auto feed = [&](const std::string& entries) {
            const Exact block(framed(example(entries)));
            return decoder.feed(block.data(), block.size(), 1).stop;
        };
        for (std::size_t i = 0; i < 2; ++i) {
            for (const std::string& refused : bad) {
                CHECK(feed(refused) == Stop::feature && decoder.problem().fault != Fault::full);
            }
            CHECK(feed(good[i]) == Stop::limit);
        }
        CHECK(feed(good[2]) == Stop::feature);
        CHECK(decoder.problem().fault == Fault::full && decoder.problem().column == static_cast<int>(short_of));
        CHECK(contents(decoder) == contents(grown.decoder));
    }
}

// ---- what is refused

Specs every_column() {
    return {spec("i", Kind::int64, ValueLayout::ragged),
            cast_to(spec("c", Kind::int64, ValueLayout::ragged), Cast::uint8),
            text_spec("b", ValueLayout::ragged),
            with_default(spec("d", Kind::bytes, ValueLayout::fixed, 2), {"one", "two"}),
            tensor_spec("t", DataType::float32, 4, {-1}),
            tensor_spec("s", DataType::string, 0, {-1}),
            cast_to(spec("h", Kind::floats, ValueLayout::fixed), Cast::float16),
            spec("r", Kind::bytes, ValueLayout::raw, 2),
            spec("u", Kind::none, ValueLayout::unset)};
}

std::string every_feature() {
    const std::string strings = header(DataType::string, {2}) + delimited(8, "ab") + delimited(8, "c");
    return ints_of("i", {1, 2}) + ints_of("c", {3}) + bytes_of_key("b", {"x", "yz"}) + bytes_of_key("d", {"p", "q"}) +
           bytes_of_key("t", {floats_tensor({2}, {5, 6})}) + bytes_of_key("s", {strings}) + floats_of("h", {7}) +
           bytes_of_key("r", {"rr"}) + entry("u", "");
}

void a_refused_record_leaves_no_output_in_any_column() {
    const std::vector<std::pair<Fault, std::string>> bad{
        {Fault::count, bytes_of_key("r", {"rr", "rr"})}, {Fault::size, bytes_of_key("r", {"rrr"})},
        {Fault::cast, ints_of("c", {1, 2, 256})},        {Fault::cast, floats_of("h", {1e6f})},
        {Fault::tensor, bytes_of_key("t", {"no"})},      {Fault::tensor, bytes_of_key("s", {"no"})},
        {Fault::utf8, bytes_of_key("b", {"x", "\xff"})}, {Fault::kind, ints_of("u", {1})},
        {Fault::count, bytes_of_key("d", {"p"})},        {Fault::missing, entry("h", "")},
        {Fault::unknown_key, entry("new", "")},          {Fault::malformed, entry("i", "\x1a\x05x")},
        {Fault::malformed, entry("c", delimited(3, delimited(1, std::string("\1\2\x80", 3))))},
    };
    const std::string good = example(every_feature());
    const std::string others = example(every_feature() + entry("d", "") + ints_of("c", {}) + ints_of("i", {8}));
    Fed one(every_column(), {good}, true), two(every_column(), {good, others}, true);
    CHECK(one.whole() && two.whole());
    for (const auto& [fault, entries] : bad) {
        // In either order: columns are read before the fault is met, and after.
        for (const std::string& payload : {example(every_feature() + entries),
                                           example(every_feature()) + example(entries), example(entries) + tag(1, 7)}) {
            Fed fed(every_column(), {good, payload}, true);
            CHECK(fed.fault() != Fault::none && fed.walk.records == 1);
            CHECK(contents(fed.decoder) == contents(one.decoder));
            fed.feed({payload});
            CHECK(fed.fault() != Fault::none && contents(fed.decoder) == contents(one.decoder));
            fed.feed({others});
            CHECK(fed.whole() && contents(fed.decoder) == contents(two.decoder));
        }
        CHECK(Fed(every_column(), {example(every_feature() + entries)}, true).fault() == fault);
    }
}

void damaged_payloads_leave_no_output() {
    const std::string good = example(every_feature());
    const Flips flips = flip_every_bit(good, [](const std::vector<std::string>& payloads) {
        return Fed(every_column(), payloads, true);
    });
    CHECK(flips.wrong == 0 && flips.refused > good.size());
}

const checks::Test tests[] = {
    TEST(numbers_are_cast_record_by_record),
    TEST(integers_and_floats_mix),
    TEST(empty_lists_of_another_kind_are_empty),
    TEST(values_that_a_cast_would_change_are_refused),
    TEST(counted_values_are_not_cast),
    TEST(records_without_values_take_the_default),
    TEST(bytes_take_the_default_value_by_value),
    TEST(a_default_replaces_only_missing_values),
    TEST(features_of_no_values_may_be_missing),
    TEST(tensors_of_one_shape_fill_their_slots),
    TEST(tensors_of_any_shape_report_their_shape),
    TEST(tensors_that_do_not_fit_report_the_reason),
    TEST(one_value_is_the_same_in_every_encoding),
    TEST(keys_of_any_length_are_expected),
    TEST(the_last_entry_of_an_expected_key_counts),
    TEST(damaged_single_values_leave_no_output),
    TEST(borrowed_memory_receives_cast_values),
    TEST(a_refused_record_leaves_no_output_in_any_column),
    TEST(damaged_payloads_leave_no_output),
};

}  // namespace

int main() { return checks::run(tests); }
