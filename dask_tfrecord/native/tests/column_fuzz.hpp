// Columns for the records of a sample: every layout, most of them matching its features.
#pragma once

#include "corpus.hpp"
#include "invariants.hpp"

namespace fuzzing {

// A tensor of open sizes, of known ones, or of some of each; now and then of another dtype or rank.
inline dtf::ColumnSpec tensor_column(const Seen& seen, Random& random) {
    const Dtype& dtype = random.below(8) == 0 ? dtypes[random.below(std::size(dtypes))] : *seen.dtype;
    Sizes shape = seen.sizes;
    const std::size_t open = random.below(3);
    for (std::int64_t& size : shape) size = open == 0 || (open == 1 && random.below(2) == 0) ? -1 : size;
    if (random.below(10) == 0) shape.push_back(1);
    return tensor_spec(seen.key, dtype.number, dtype.item, shape);
}

// Plain lists of numbers or bytes, for features and for the steps of feature lists.
inline dtf::ColumnSpec list_column(const Seen& seen, Random& random) {
    const std::size_t each = seen.kind == Kind::bytes ? 1 : 1 + random.below(3);
    switch (random.below(8)) {
        case 0: return spec(seen.key, static_cast<Kind>(1 + random.below(3)), ValueLayout::fixed, random.below(5));
        case 1: return spec(seen.key, static_cast<Kind>(1 + random.below(3)), ValueLayout::ragged, 1 + random.below(3));
        case 2:
        case 3: return spec(seen.key, seen.kind, ValueLayout::ragged, each);
        case 4: return spec(seen.key, seen.kind, ValueLayout::ragged);
        default: return spec(seen.key, seen.kind, ValueLayout::fixed, seen.count);
    }
}

// Casts, texts, default values, and what may be missing.
inline dtf::ColumnSpec varied(dtf::ColumnSpec made, Random& random) {
    if (made.layout != ValueLayout::fixed && made.layout != ValueLayout::ragged) return made;
    const auto first = static_cast<int>(made.kind == Kind::int64 ? dtf::Cast::boolean : dtf::Cast::float16);
    const std::size_t casts = made.kind == Kind::int64 ? 8 : 3;
    if (made.kind == Kind::bytes) {
        if (random.below(2) == 0) made.content = dtf::Content::text;
    } else if (random.below(3) == 0) {
        made.cast = static_cast<dtf::Cast>(first + static_cast<int>(random.below(casts)));
    }
    const bool exact = made.cast == dtf::Cast::none || made.cast == dtf::Cast::float64;
    if (made.kind == Kind::floats && exact && random.below(3) == 0) made.content = dtf::Content::mixed;
    made.optional = random.below(2) == 0;
    if (made.layout != ValueLayout::fixed || made.count == 0 || random.below(3) != 0) return made;
    if (made.kind == Kind::bytes) {
        for (std::size_t i = 0; i < made.count; ++i) made.default_value.emplace_back(random.below(3), 'z');
    } else {  // any bits, but of booleans
        const char byte = made.cast == dtf::Cast::boolean ? '\1' : static_cast<char>(random.next());
        made.default_value.emplace_back(made.count * item_of(made), byte);
    }
    return made;
}

inline dtf::ColumnSpec raw_column(const Seen& seen, Random& random) {
    std::size_t swap = std::size_t{1} << random.below(4);
    if (seen.size % swap != 0) swap = 1;
    const auto content = random.below(4) == 0 ? dtf::Content::booleans : dtf::Content::any;
    return holding(content, spec(seen.key, Kind::bytes, ValueLayout::raw, seen.size, swap));
}

inline dtf::ColumnSpec column_for(const Seen& seen, Random& random) {
    if (seen.list) {
        if (random.below(10) == 0) return steps(spec(seen.key, Kind::none, ValueLayout::skipped));
        if (random.below(30) == 0) return steps(spec(seen.key, Kind::none, ValueLayout::unset));
        return varied(steps(list_column(seen, random)), random);
    }
    if (seen.dtype != nullptr && random.below(2) == 0) return tensor_column(seen, random);
    switch (random.below(10)) {
        case 0: return spec(seen.key, Kind::none, ValueLayout::skipped);
        case 1: return spec(seen.key, Kind::none, ValueLayout::unset);
        case 2:
        case 3:
            if (seen.kind == Kind::bytes) return raw_column(seen, random);
            break;
        default: break;
    }
    return varied(list_column(seen, random), random);
}

inline Specs some_columns(const Sample& sample, Random& random) {
    Specs specs;
    const std::size_t few = 1 + random.below(2 + sample.features.size() / 3);  // of many, one refuses most records
    for (const Seen& seen : sample.features) {
        const auto same_key = [&](const dtf::ColumnSpec& one) { return one.key == seen.key && one.list == seen.list; };
        const bool there = std::any_of(specs.begin(), specs.end(), same_key);
        if (!there && random.below(few) == 0) specs.push_back(column_for(seen, random));
    }
    return specs;
}

// Check that the output and the fault of a record do not depend on preceding records, and that a refused one leaves no
// values.
inline void check_alone(const Specs& specs, const std::string& bytes, bool check, bool closed, Message message) {
    dtf::Decoder together(specs, check, closed, message);
    std::size_t at = 0, rows = 0;
    for (int record = 0; record < 8; ++record) {
        const Exact block(std::string_view(bytes).substr(at));
        dtf::Decoder alone(specs, check, closed, message);
        const std::string before = contents(together), nothing = contents(alone);
        const dtf::Walk one = alone.feed(block.data(), block.size(), 1);
        const dtf::Walk another = together.feed(block.data(), block.size(), 1);
        REQUIRE(one.stop == another.stop && one.records == another.records && one.consumed == another.consumed);
        if (one.stop == Stop::feature) {
            REQUIRE(said_of(alone.problem()) == said_of(together.problem()));
        } else if (one.stop == Stop::limit) {
            for (std::size_t i = 0; i < specs.size(); ++i) {
                REQUIRE(row_of(alone.columns()[i], 0) == row_of(together.columns()[i], rows));
            }
            ++rows;
        }
        if (one.records == 0) REQUIRE(contents(together) == before && contents(alone) == nothing);
        if (one.stop != Stop::feature && one.stop != Stop::limit) return;
        at += 16 + static_cast<std::size_t>(dtf::load<std::uint64_t>(block.data()));
    }
}

}  // namespace fuzzing
