// Invariants of a decoder after any block.
#pragma once

#include "column_support.hpp"
#include "fuzzing.hpp"

#include <functional>
#include <optional>

namespace fuzzing {

using dtf::Kind;
using dtf::ValueLayout;
using dtf::Stop;

inline std::string_view view_of(const Exact& block, std::size_t at, std::size_t size) {
    return std::string_view(reinterpret_cast<const char*>(block.data()), block.size()).substr(at, size);
}

inline bool crc_holds(std::string_view bytes, std::string_view stored) {
    return masked(bytes) == dtf::load<std::uint32_t>(bytes_of(stored));
}

// Bytes of `records` whole records; their CRCs hold where they are checked.
inline std::size_t span_of(const Exact& block, std::uint64_t records, bool check) {
    std::size_t at = 0;
    for (; records > 0; --records) {
        REQUIRE(block.size() - at >= 16);
        const std::uint64_t length = dtf::load<std::uint64_t>(block.data() + at);
        REQUIRE(length <= block.size() - at - 16);
        const auto size = static_cast<std::size_t>(length);
        REQUIRE(!check || crc_holds(view_of(block, at, 8), view_of(block, at + 8, 4)));
        REQUIRE(!check || crc_holds(view_of(block, at + 12, size), view_of(block, at + 12 + size, 4)));
        at += 16 + size;
    }
    return at;
}

inline void check_walk(const dtf::Decoder& decoder, const dtf::Walk& walk, const Exact& block, std::uint64_t limit,
                       bool check) {
    REQUIRE(walk.records <= limit && walk.consumed <= block.size());
    const std::size_t at = span_of(block, walk.records, check);
    const std::size_t left = block.size() - at;
    REQUIRE(walk.consumed == at);
    if (walk.stop == Stop::limit) REQUIRE(walk.records == limit);
    if (walk.stop == Stop::more) REQUIRE(walk.need > left);
    if (walk.stop == Stop::feature) {
        REQUIRE(span_of(block, walk.records + 1, check) > at);
        REQUIRE(decoder.problem().fault != dtf::Fault::none);
    }
    if (walk.stop != Stop::framing) return;
    REQUIRE(check && left >= 12);
    if (!crc_holds(view_of(block, at, 8), view_of(block, at + 8, 4))) return;
    const auto length = static_cast<std::size_t>(dtf::load<std::uint64_t>(block.data() + at));
    REQUIRE(left >= 16 && length <= left - 16);
    REQUIRE(!crc_holds(view_of(block, at + 12, length), view_of(block, at + 12 + length, 4)));
}

inline void check_splits(dtf::Buffer& splits, std::uint64_t last) {
    const std::vector<std::int64_t> ends = items<std::int64_t>(splits);
    REQUIRE(!ends.empty() && ends.front() == 0 && std::is_sorted(ends.begin(), ends.end()));
    REQUIRE(static_cast<std::uint64_t>(ends.back()) == last);
}

// Bytes of one value of a column that is neither bytes nor skipped; of a raw value and a tensor, all of the row.
inline std::size_t item_of(const dtf::ColumnSpec& spec) {
    if (spec.layout == ValueLayout::raw) return spec.count;
    if (spec.layout == ValueLayout::tensor) return spec.tensor.item;
    if (spec.cast != dtf::Cast::none) return dtf::item_size(spec.cast);
    return spec.kind == Kind::int64 ? 8 : 4;
}

// Values in each row, or step, where that is known.
inline std::uint64_t values_each(const dtf::ColumnSpec& spec) {
    if (spec.layout == ValueLayout::raw) return 1;
    if (spec.layout != ValueLayout::tensor) return spec.count;
    std::uint64_t product = 1;
    for (const std::int64_t size : spec.tensor.shape) product *= static_cast<std::uint64_t>(size);
    return product;
}

// Shapes of rows match the specification, and the number of values matches the shapes.
inline void check_shapes(dtf::Column& column, std::uint64_t records) {
    const std::vector<std::int64_t>& shape = column.spec().tensor.shape;
    const std::vector<std::int64_t> sizes = items<std::int64_t>(column.shapes);
    const std::vector<std::int64_t> ends = items<std::int64_t>(column.row_splits);
    REQUIRE(sizes.size() == records * shape.size());
    for (std::size_t row = 0; row < records; ++row) {
        std::int64_t product = 1;
        for (std::size_t axis = 0; axis < shape.size(); ++axis) {
            const std::int64_t size = sizes[row * shape.size() + axis];
            REQUIRE(size >= 0 && (shape[axis] == -1 || shape[axis] == size));
            product *= size;
        }
        REQUIRE(ends[row + 1] - ends[row] == product);
    }
}

// Each level of splits ascends, and ends where the next one begins.
inline void check_levels(dtf::Column& column, std::uint64_t records, std::uint64_t values) {
    const dtf::ColumnSpec& spec = column.spec();
    REQUIRE(column.row_splits.size() == (column.has_rows() ? 8 * (records + 1) : 0));
    if (!column.has_rows()) {
        REQUIRE(values == records * values_each(spec) && column.step_splits.size() == 0);
    } else if (column.has_steps()) {
        check_splits(column.step_splits, values);
        check_splits(column.row_splits, column.step_splits.size() / 8 - 1);
    } else {
        REQUIRE(column.step_splits.size() == 0);
        if (spec.layout == ValueLayout::fixed) {
            const auto total = static_cast<std::uint64_t>(column.row_splits.at<std::int64_t>(records));
            REQUIRE(values == total * spec.count);
            values = total;
        }
        check_splits(column.row_splits, values);
    }
    if (spec.layout != ValueLayout::ragged) return;
    for (const std::int64_t end : items<std::int64_t>(spec.list ? column.step_splits : column.row_splits)) {
        REQUIRE(static_cast<std::uint64_t>(end) % spec.count == 0);
    }
}

inline void check_column(dtf::Column& column, std::uint64_t records) {
    const dtf::ColumnSpec& spec = column.spec();
    const std::size_t shapes = column.has_shapes() ? static_cast<std::size_t>(records) * spec.tensor.shape.size() : 0;
    REQUIRE(column.shapes.size() == 8 * shapes);
    if (spec.layout == ValueLayout::skipped || spec.layout == ValueLayout::unset) {
        REQUIRE(column.values.size() + column.value_splits.size() + column.step_splits.size() == 0);
        REQUIRE(column.row_splits.size() == 0);
        return;
    }
    if (column.stores_bytes()) {
        check_splits(column.value_splits, column.values.size());
        check_levels(column, records, column.value_splits.size() / 8 - 1);
    } else {
        const std::size_t item = item_of(spec);
        REQUIRE(column.value_splits.size() == 0 && (item == 0 || column.values.size() % item == 0));
        check_levels(column, records, item == 0 ? records : column.values.size() / item);
    }
    if (column.has_shapes()) check_shapes(column, records);
    const bool booleans = spec.content == dtf::Content::booleans || spec.cast == dtf::Cast::boolean;
    for (const char byte : booleans ? text(column.values) : std::string()) REQUIRE(byte == 0 || byte == 1);
    if (spec.content != dtf::Content::text) return;
    const std::vector<std::int64_t> ends = items<std::int64_t>(column.value_splits);
    for (std::size_t i = 1; i < ends.size(); ++i) {
        const auto begin = static_cast<std::size_t>(ends[i - 1]);
        REQUIRE(dtf::is_utf8(column.values.data() + begin, static_cast<std::size_t>(ends[i]) - begin));
    }
}

// Lengths between the splits from `begin` to `end`, which become those of the level below.
inline std::string lengths_of(dtf::Buffer& splits, std::int64_t& begin, std::int64_t& end) {
    std::string said = std::to_string(end - begin) + '[';
    for (std::int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<std::size_t>(i);
        said += std::to_string(splits.at<std::int64_t>(at + 1) - splits.at<std::int64_t>(at)) + ',';
    }
    begin = splits.at<std::int64_t>(static_cast<std::size_t>(begin));
    end = splits.at<std::int64_t>(static_cast<std::size_t>(end));
    return said + ']';
}

// Content of one row of a column, independent of preceding rows.
inline std::string row_of(dtf::Column& column, std::size_t row) {
    const dtf::ColumnSpec& spec = column.spec();
    if (spec.layout == ValueLayout::skipped || spec.layout == ValueLayout::unset) return {};
    auto begin = static_cast<std::int64_t>(row), end = begin + 1;
    std::string said = column.has_rows() ? lengths_of(column.row_splits, begin, end) : std::string();
    if (column.has_steps()) {
        said += lengths_of(column.step_splits, begin, end);
    } else if (!column.has_rows() || spec.layout == ValueLayout::fixed) {
        begin *= static_cast<std::int64_t>(values_each(spec));
        end *= static_cast<std::int64_t>(values_each(spec));
    }
    if (column.stores_bytes()) {
        said += lengths_of(column.value_splits, begin, end);
    } else {
        begin *= static_cast<std::int64_t>(item_of(spec));
        end *= static_cast<std::int64_t>(item_of(spec));
    }
    if (column.has_shapes()) {
        const std::size_t size = 8 * spec.tensor.shape.size();
        said += text(column.shapes).substr(row * size, size);
    }
    return said + text(column.values).substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

// Outcome of a block: the decoded content and, as text, the reported problems.
struct Outcome {
    std::uint64_t records = 0;
    std::string said;
    std::string columns;
};

inline void note(Outcome& outcome, const dtf::Problem& problem) {
    outcome.said += std::to_string(outcome.records) + ' ' + said_of(problem);
}

// Feeds a block in pieces, each with what was left of the one before; goes on after records that are refused.
inline Outcome run(dtf::Decoder& decoder, const std::string& bytes, bool check,
                   const std::function<std::size_t()>& piece, const std::function<std::uint64_t()>& limit) {
    Outcome outcome;
    std::size_t begin = 0, end = 0;
    for (bool framing = false; !framing;) {
        const Exact block(std::string_view(bytes).substr(begin, end - begin));
        const std::uint64_t most = limit();
        const dtf::Walk walk = decoder.feed(block.data(), block.size(), most);
        check_walk(decoder, walk, block, most, check);
        outcome.records += walk.records;
        if (most != UINT64_MAX) decoder.preallocate(static_cast<double>(most));
        begin += static_cast<std::size_t>(walk.consumed);
        if (walk.stop == Stop::feature) {
            note(outcome, decoder.problem());
            begin += 16 + static_cast<std::size_t>(dtf::load<std::uint64_t>(bytes_of(bytes) + begin));
        } else if (walk.stop == Stop::more) {
            if (end == bytes.size()) break;
            end = std::min(bytes.size(), end + piece());
        }
        framing = walk.stop == Stop::framing;
    }
    outcome.said += "stopped at " + std::to_string(begin);
    for (dtf::Column& column : decoder.columns()) check_column(column, outcome.records);
    outcome.columns = contents(decoder);
    return outcome;
}

// Memory for `rows` rows, in blocks of just that size, for every column that takes it.
inline std::vector<std::optional<Exact>> lend(dtf::Decoder& decoder, std::uint64_t rows) {
    std::vector<std::optional<Exact>> lent;
    for (dtf::Column& column : decoder.columns()) {
        const ValueLayout layout = column.spec().layout;
        lent.emplace_back();
        if (column.stores_bytes() || column.has_rows()) continue;
        if (layout == ValueLayout::skipped || layout == ValueLayout::unset) continue;
        lent.back().emplace(std::string(static_cast<std::size_t>(rows) * column.slot(), '\0'));
        column.values = dtf::Buffer(lent.back()->data(), lent.back()->size());
    }
    return lent;
}

// Memory of any size for every column whose rows differ in size.
inline std::vector<std::optional<Exact>> offer(dtf::Decoder& decoder, Random& random) {
    std::vector<std::optional<Exact>> offered;
    for (dtf::Column& column : decoder.columns()) {
        offered.emplace_back();
        if (!column.stores_bytes() && !column.has_rows()) continue;
        offered.back().emplace(std::string(8 * random.below(random.below(2) == 0 ? 6 : 2000), '\0'));
        column.values = dtf::Buffer::offered(offered.back()->data(), offered.back()->size());
    }
    return offered;
}

}  // namespace fuzzing
