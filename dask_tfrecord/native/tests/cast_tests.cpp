// Tests of casts.hpp and rows.hpp against straightforward implementations.
#include "checks.hpp"
#include "rows.hpp"
#include "support.hpp"

#include <cmath>
#include <numeric>

namespace {

using namespace support;
using dtf::Buffer;
using dtf::Cast;

// ---- integers

struct Integer {
    Cast cast;
    std::size_t item;
    std::int64_t least, most;
};

const Integer integers[] = {
    {Cast::boolean, 1, 0, 1},
    {Cast::int8, 1, -128, 127},
    {Cast::int16, 2, -32768, 32767},
    {Cast::int32, 4, -2147483648LL, 2147483647LL},
    {Cast::uint8, 1, 0, 255},
    {Cast::uint16, 2, 0, 65535},
    {Cast::uint32, 4, 0, 4294967295LL},
    {Cast::uint64, 8, 0, INT64_MAX},
};

// Cast a single value.
template <class From>
bool cast_one(Cast cast, From value, std::string& bytes, std::uint64_t& refused) {
    Buffer wide, out;
    wide.push(value);
    out.push('!');  // what is there stays there
    const bool fits = dtf::cast_values(cast, wide, out, refused);
    bytes = text(out).substr(1);
    return fits;
}

void integers_are_kept_or_refused() {
    std::vector<std::int64_t> values{INT64_MIN, INT64_MIN + 1, INT64_MAX - 1, INT64_MAX};
    for (std::int64_t value = -70000; value <= 70000; ++value) values.push_back(value);
    for (unsigned bit = 16; bit < 63; ++bit) {
        for (const std::int64_t nudge : {-2, -1, 0, 1, 2}) {
            values.push_back((std::int64_t{1} << bit) + nudge);
            values.push_back(-(std::int64_t{1} << bit) + nudge);
        }
    }
    for (const Integer& to : integers) {
        std::size_t wrong = 0;
        CHECK(dtf::item_size(to.cast) == to.item);
        for (const std::int64_t value : values) {
            std::string bytes;
            std::uint64_t refused = 0;
            const bool fits = value >= to.least && value <= to.most;
            if (cast_one(to.cast, value, bytes, refused) != fits) {
                ++wrong;
            } else if (fits) {
                wrong += bytes != little_endian(value).substr(0, to.item);
            } else {
                wrong += refused != static_cast<std::uint64_t>(value);
            }
        }
        CHECK(wrong == 0);
    }
}

void the_first_value_that_does_not_fit_is_reported() {
    for (const Integer& to : integers) {
        Buffer wide, out;
        for (const std::int64_t value : {to.least, to.most, to.least - 1, std::int64_t{-77}}) wide.push(value);
        std::uint64_t refused = 0;
        CHECK(!dtf::cast_values(to.cast, wide, out, refused));
        CHECK(refused == static_cast<std::uint64_t>(to.least - 1));
    }
}

void values_are_appended_in_order() {
    Buffer wide, out;
    std::uint64_t refused = 0;
    CHECK(dtf::cast_values(Cast::int16, wide, out, refused) && out.size() == 0);  // none
    for (const std::int64_t value : {1, -2, 300}) wide.push(value);
    CHECK(dtf::cast_values(Cast::int16, wide, out, refused));
    CHECK(dtf::cast_values(Cast::int16, wide, out, refused));
    CHECK(items<std::int16_t>(out) == std::vector<std::int16_t>{1, -2, 300, 1, -2, 300});
    Exact memory("12345");
    Buffer lent(memory.data(), memory.size());  // a byte less than three items
    CHECK(!dtf::cast_values(Cast::int16, wide, lent, refused) && lent.size() == 0);
    CHECK(!dtf::cast_values(Cast::none, wide, out, refused));
}

// ---- floats

double float_by_definition(std::uint32_t bits) {  // of one that is finite, or infinite
    const double sign = bits >> 31 != 0 ? -1 : 1;
    const int exponent = static_cast<int>(bits >> 23 & 0xff);
    const int fraction = static_cast<int>(bits & 0x7fffff);
    if (exponent == 255) return sign * HUGE_VAL;
    return sign * (exponent == 0 ? std::ldexp(fraction, -149) : std::ldexp(fraction + 0x800000, exponent - 150));
}

bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

// 16-bit float by the definition of IEEE 754: a table of all its values.
class Half {
public:
    Half(Cast cast, int exponent_bits, int fraction_bits) : cast_(cast), fraction_bits_(fraction_bits) {
        const int bias = (1 << (exponent_bits - 1)) - 1, one = 1 << fraction_bits;
        for (int exponent = 0; exponent < (1 << exponent_bits) - 1; ++exponent) {
            for (int fraction = 0; fraction < one; ++fraction) {
                const int whole = exponent == 0 ? fraction : fraction + one;
                values_.push_back(std::ldexp(whole, std::max(exponent, 1) - bias - fraction_bits));
            }
        }
        infinity_ = static_cast<std::uint32_t>(values_.size());
        values_.push_back(std::ldexp(1, bias + 1));  // where the next one would be
    }

    const std::vector<double>& values() const { return values_; }

    // Return whether the cast of a float is correct.
    bool right(std::uint32_t bits) const {
        const auto [fits, found] = cast(bits);
        const std::uint32_t sign = bits >> 16 & 0x8000;
        if (is_nan(bits)) {  // stays one, of its sign, and with what has place of its payload
            const std::uint32_t payload = (bits & 0x7fffff) >> (23 - fraction_bits_);
            const std::uint32_t kept = found & ((1u << fraction_bits_) - 1);
            return fits && (found & 0x8000) == sign && (found & 0x7fff) > infinity_ &&
                   (payload == 0 || kept == payload);
        }
        if ((bits & 0x7fffffff) == 0x7f800000) return fits && found == (sign | infinity_);
        const std::uint32_t nearest = nearest_to(std::fabs(float_by_definition(bits)));
        return nearest == infinity_ ? !fits : fits && found == (sign | nearest);
    }

private:
    std::pair<bool, std::uint32_t> cast(std::uint32_t bits) const {
        if (cast_ == Cast::bfloat16) return by(dtf::casts::to_bfloat16, bits);
        return by(dtf::casts::to_float16, bits);
    }

    static std::pair<bool, std::uint32_t> by(bool (*one)(std::uint32_t, std::uint16_t&), std::uint32_t bits) {
        std::uint16_t half = 0;
        const bool fits = one(bits, half);
        return {fits, half};
    }

    // Its bits are its place in the table; halfway between two, it is the even one.
    std::uint32_t nearest_to(double size) const {
        if (size >= values_.back()) return infinity_;
        const auto above = std::upper_bound(values_.begin(), values_.end(), size);
        const auto below = static_cast<std::uint32_t>(above - values_.begin()) - 1;
        const double middle = (values_[below] + *above) / 2;
        return size > middle || (size == middle && below % 2 == 1) ? below + 1 : below;
    }

    Cast cast_;
    int fraction_bits_;
    std::uint32_t infinity_;
    std::vector<double> values_;
};

std::vector<Half> halves() { return {Half(Cast::float16, 5, 10), Half(Cast::bfloat16, 8, 7)}; }

std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

void halves_round_to_nearest_even() {
    for (const Half& half : halves()) {
        std::size_t wrong = 0;
        for (std::size_t i = 0; i + 1 < half.values().size(); ++i) {
            for (const double at : {half.values()[i], (half.values()[i] + half.values()[i + 1]) / 2}) {
                for (std::int64_t nudge = -3; nudge <= 3; ++nudge) {
                    const std::int64_t size = bits_of(static_cast<float>(at)) + nudge;
                    if (size < 0) continue;
                    wrong += !half.right(static_cast<std::uint32_t>(size));
                    wrong += !half.right(static_cast<std::uint32_t>(size) | 0x80000000);
                }
            }
        }
        CHECK(wrong == 0);
    }
}

// With a stride of 1 this is every float there is; that takes minutes, and has been done.
void halves_of_random_floats() {
    constexpr std::uint64_t stride = 1021;
    for (const Half& half : halves()) {
        std::size_t wrong = 0;
        for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += stride) {
            wrong += !half.right(static_cast<std::uint32_t>(bits));
        }
        CHECK(wrong == 0);
    }
}

void halves_of_known_values() {
    struct Case {
        Cast cast;
        float value;
        std::uint32_t half;
    };
    constexpr std::uint32_t too_large = 0x10000;
    const float infinity = std::numeric_limits<float>::infinity();
    const Case cases[] = {
        {Cast::float16, 0.0f, 0},           {Cast::float16, -0.0f, 0x8000},      {Cast::float16, 1.0f, 0x3c00},
        {Cast::float16, -2.0f, 0xc000},     {Cast::float16, 65504.0f, 0x7bff},   {Cast::float16, 65519.99f, 0x7bff},
        {Cast::float16, 65520.0f, too_large}, {Cast::float16, infinity, 0x7c00}, {Cast::float16, -infinity, 0xfc00},
        {Cast::float16, 5.9604645e-8f, 1},  {Cast::float16, 2.9802322e-8f, 0},   {Cast::float16, 2.9802326e-8f, 1},
        {Cast::float16, 1e-45f, 0},         {Cast::float16, 0.333251953125f, 0x3555},
        {Cast::bfloat16, 1.0f, 0x3f80},     {Cast::bfloat16, -0.0f, 0x8000},     {Cast::bfloat16, infinity, 0x7f80},
        {Cast::bfloat16, 3.3895314e38f, 0x7f7f}, {Cast::bfloat16, 3.4028235e38f, too_large},
        {Cast::bfloat16, 1.00390625f, 0x3f80}, {Cast::bfloat16, 1.01171875f, 0x3f82}, {Cast::bfloat16, 1e-45f, 0},
    };
    for (const Case& one : cases) {
        std::string bytes;
        std::uint64_t refused = 0;
        const bool fits = cast_one(one.cast, bits_of(one.value), bytes, refused);
        CHECK(fits == (one.half != too_large));
        CHECK(fits ? bytes == little_endian(static_cast<std::uint16_t>(one.half)) : refused == bits_of(one.value));
    }
}

void doubles_equal_their_floats() {
    std::size_t wrong = 0;
    for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 99991) {
        const auto one = static_cast<std::uint32_t>(bits);
        double wide = 0;
        wrong += !dtf::casts::to_float64(one, wide);
        wrong += is_nan(one) ? !std::isnan(wide) : wide != float_by_definition(one);
        wrong += std::signbit(wide) != (one >> 31 != 0);
    }
    CHECK(wrong == 0);
    std::string bytes;
    std::uint64_t refused = 0;
    for (const std::uint32_t one : {0u, 0x80000000u, 0x7f800000u, 0xff800000u, 1u, 0x7f7fffffu}) {
        CHECK(cast_one(Cast::float64, one, bytes, refused) && bytes == little_endian(float_by_definition(one)));
    }
}

template <class Float>
void integers_become_exact_floats(Cast cast, std::int64_t most) {
    std::vector<std::int64_t> values{INT64_MIN, INT64_MIN + 1, INT64_MAX - 1, INT64_MAX, 0};
    for (unsigned bit = 0; bit < 63; ++bit) {
        for (const std::int64_t nudge : {-3, -2, -1, 0, 1, 2, 3}) {
            values.push_back((std::int64_t{1} << bit) + nudge);
            values.push_back(-(std::int64_t{1} << bit) + nudge);
        }
    }
    std::size_t wrong = 0;
    for (const std::int64_t value : values) {
        Buffer wide, out;
        wide.push(value);
        std::uint64_t refused = 0;
        // Halve what is even until it fits, or does not.
        std::int64_t odd = value;
        while (odd != 0 && odd % 2 == 0) odd /= 2;
        const bool fits = odd >= -most && odd <= most;
        wrong += dtf::cast_to_exact_floats(cast, wide, out, refused) != fits;
        if (fits) {
            wrong += out.size() != sizeof(Float) || out.at<Float>(0) != static_cast<Float>(value);
        } else {
            wrong += refused != static_cast<std::uint64_t>(value) || out.size() > sizeof(Float);
        }
    }
    CHECK(wrong == 0);
}

void integers_are_exact_floats_or_refused() {
    integers_become_exact_floats<double>(Cast::float64, std::int64_t{1} << 53);
    integers_become_exact_floats<float>(Cast::none, std::int64_t{1} << 24);
}

// ---- rows

using Ints = std::vector<std::int64_t>;

// A row in its slot, or nothing where that is refused.
std::string padded(const std::string& values, const Ints& splits, std::size_t item, std::size_t length,
                   const std::string& filler) {
    const Exact block(values), fill(filler);
    const std::size_t rows = splits.size() - 1;
    Exact out(std::string(rows * length * item, '?'));
    const std::vector<dtf::RowSource> sources{{block.data(), values.size() / item, splits.data(), rows}};
    const dtf::Picked picked{sources, nullptr, nullptr, rows};
    if (!dtf::pad_rows(picked, item, length, fill.data(), out.data())) return "refused";
    return std::string(reinterpret_cast<const char*>(out.data()), out.size());
}

void rows_are_padded_to_a_length() {
    CHECK(padded("abcdef", {0, 2, 2, 3, 6}, 1, 3, ".") == "ab....c..def");
    CHECK(padded("aabbccddee", {0, 1, 5}, 2, 4, "-+") == "aa-+-+-+bbccddee");
    CHECK(padded("abcdef", {2, 3, 4}, 1, 2, ".") == "c.d.");  // rows within a longer array
    CHECK(padded("", {0, 0, 0}, 4, 2, "wxyz") == "wxyzwxyzwxyzwxyz");
    CHECK(padded("", {0, 0}, 4, 0, "wxyz").empty() && padded("ab", {0}, 1, 3, ".").empty());
}

void invalid_splits_are_not_padded() {
    const Ints none[] = {{0, 3, 2}, {0, 7}, {-1, 2}, {3, 2}, {0, 2, INT64_MAX}, {INT64_MIN, 0}, {0, -1, 2}};
    for (const Ints& splits : none) CHECK(padded("abcdef", splits, 1, 9, ".") == "refused");
    CHECK(padded("abcdef", {0, 4}, 2, 9, "..") == "refused");     // four items of two bytes
    CHECK(padded("abcdef", {0, 3, 6}, 1, 2, ".") == "refused");  // longer than the slots
}

std::string taken(std::string_view values, const Ints& splits, std::size_t item, const Ints& index, std::size_t size) {
    const Exact block(values);
    Exact out(std::string(size, '?'));
    const std::vector<dtf::RowSource> sources{{block.data(), values.size() / item, splits.data(), splits.size() - 1}};
    const dtf::Picked picked{sources, nullptr, index.data(), index.size()};
    const bool fits = dtf::take_rows(picked, item, out.data(), out.size());
    return fits ? std::string(reinterpret_cast<const char*>(out.data()), out.size()) : "refused";
}

void rows_are_taken_in_any_order() {
    const Ints splits{0, 2, 2, 3, 6};
    CHECK(taken("abcdef", splits, 1, {3, 0, 1, 3}, 8) == "defabdef");
    CHECK(taken("aabbccddeeff", splits, 2, {2, 1, 0}, 6) == "ccaabb");
    CHECK(taken("abcdef", {2, 3, 4}, 1, {1, 0}, 2) == "dc");  // rows within a longer array
    CHECK(taken("abcdef", splits, 1, {}, 0).empty() && taken("", {0, 0}, 8, {0, 0}, 0).empty());
    CHECK(taken("", {0}, 1, {}, 0).empty());
}

void invalid_splits_are_not_taken() {
    const Ints none[] = {{0, 3, 2}, {0, 7}, {-1, 2}, {3, 2}, {0, 2, INT64_MAX}, {INT64_MIN, 0}, {0, -1, 2}};
    for (const Ints& splits : none) {
        Ints index;
        for (std::size_t row = 0; row + 1 < splits.size(); ++row) index.push_back(static_cast<std::int64_t>(row));
        CHECK(taken("abcdef", splits, 1, index, 3) == "refused");
    }
    for (const std::int64_t row : {std::int64_t{2}, std::int64_t{-1}, INT64_MAX, INT64_MIN}) {
        CHECK(taken("abcdef", {0, 2, 6}, 1, {row}, 2) == "refused");
    }
    for (const std::size_t size : {0u, 1u, 3u, 5u}) CHECK(taken("abcdef", {0, 2, 6}, 1, {0}, size) == "refused");
    CHECK(taken("abcdef", {0, 4}, 2, {0}, 8) == "refused");  // four items of two bytes
}

void rows_of_several_sources_are_taken_and_padded() {
    const Exact one("abcdef"), other("xyz");
    const Ints first{0, 2, 2, 6}, second{1, 3};
    const std::vector<dtf::RowSource> divided{{one.data(), 6, first.data(), 3}, {other.data(), 3, second.data(), 1}};
    const std::vector<dtf::RowSource> items{{one.data(), 3, nullptr, 3}, {other.data(), 1, nullptr, 1}};
    const auto of = [](const std::vector<dtf::RowSource>& sources, const Ints& owners, const Ints& index,
                       std::size_t item, std::size_t size) {
        Exact out(std::string(size, '?'));
        const dtf::Picked picked{sources, owners.data(), index.data(), index.size()};
        return dtf::take_rows(picked, item, out.data(), size) ? std::string(out.data(), out.data() + size) : "refused";
    };
    CHECK(of(divided, {0, 1, 0}, {2, 0, 0}, 1, 8) == "cdefyzab");
    CHECK(of(items, {1, 0, 0}, {0, 2, 0}, 2, 6) == "xyefab");
    CHECK(of(items, {1}, {1}, 2, 2) == "refused" && of(items, {2}, {0}, 2, 2) == "refused");
    CHECK(of(items, {-1}, {0}, 2, 2) == "refused" && of(divided, {1}, {1}, 1, 2) == "refused");
    const Ints owners{1, 0}, index{0, 2};
    const dtf::Picked picked{divided, owners.data(), index.data(), 2};
    Ints splits(3);
    CHECK(dtf::take_splits(picked, splits.data()) && splits == Ints{0, 2, 6});
    Exact out(std::string(10, '?'));
    const std::uint8_t filler = '.';
    CHECK(dtf::pad_rows(picked, 1, 5, &filler, out.data()) && std::string(out.data(), out.data() + 10) == "yz...cdef.");
}

Ints sorted(const Ints& places, std::size_t axes, const Ints& splits) {
    Ints order(places.size() / axes);
    const std::size_t items = order.size();
    std::vector<std::vector<std::uint8_t>> from, to;
    std::vector<dtf::Reordered> arrays;
    for (const std::size_t item : {std::size_t{1}, std::size_t{4}, std::size_t{8}, std::size_t{24}}) {
        std::vector<std::uint8_t> bytes(items * item);
        for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * i);
        to.emplace_back(bytes.size());
        from.push_back(std::move(bytes));
        arrays.push_back({from.back().data(), to.back().data(), item});
    }
    const bool fits =
        dtf::sort_rows(places.data(), items, axes, splits.data(), splits.size() - 1, order.data(), arrays);
    if (!fits) return {-1};
    for (std::size_t k = 0; k < arrays.size(); ++k) {
        for (std::size_t i = 0; i < to[k].size(); ++i) {
            const std::size_t item = arrays[k].item;
            CHECK(to[k][i] == from[k][static_cast<std::size_t>(order[i / item]) * item + i % item]);
        }
    }
    return order;
}

// Again and again the first of the least ones.
Ints sorted_by_definition(const Ints& places, std::size_t axes, const Ints& splits) {
    Ints order;
    for (std::size_t row = 0; row + 1 < splits.size(); ++row) {
        std::vector<std::pair<Ints, std::int64_t>> row_places;
        for (std::int64_t i = splits[row]; i < splits[row + 1]; ++i) {
            const auto from = places.begin() + i * static_cast<std::ptrdiff_t>(axes);
            row_places.emplace_back(Ints(from, from + static_cast<std::ptrdiff_t>(axes)), i);
        }
        while (!row_places.empty()) {
            const auto least = std::min_element(row_places.begin(), row_places.end());
            order.push_back(least->second);
            row_places.erase(least);
        }
    }
    return order;
}

void each_row_lies_within_the_values() {
    const auto visited = [](const std::vector<std::int64_t>& splits, std::size_t most, std::size_t stop = 99) {
        std::vector<std::size_t> seen;
        const bool done = dtf::each_row(splits.data(), splits.empty() ? 0 : splits.size() - 1, most,
            [&](std::size_t row, std::size_t begin, std::size_t end) {
                CHECK(begin <= end && end <= most);
                seen.insert(seen.end(), {row, begin, end});
                return row != stop;
            });
        return std::make_pair(done, seen);
    };
    using Seen = std::vector<std::size_t>;
    CHECK(visited({0, 2, 2, 5}, 5) == std::make_pair(true, Seen({0, 0, 2, 1, 2, 2, 2, 2, 5})));
    CHECK(visited({0, 2, 2, 5}, 5, 1) == std::make_pair(false, Seen({0, 0, 2, 1, 2, 2})));
    CHECK(visited({0, 2, 1, 5}, 5) == std::make_pair(false, Seen({0, 0, 2})));
    CHECK(visited({0, 2, 6}, 5) == std::make_pair(false, Seen({0, 0, 2})));
    for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{6}, INT64_MIN, INT64_MAX}) {
        CHECK(visited({bad, bad}, 5) == std::make_pair(false, Seen()));
    }
    CHECK(visited({}, 0).first && visited({3}, 0).first);
}

void sorted_indices_ascend_within_their_rows() {
    CHECK(sorted({3, 1, 2, 9, 7}, 1, {0, 3, 3, 5}) == Ints{1, 2, 0, 4, 3});
    CHECK(sorted({1, 5, 0, 9, 1, 4}, 2, {0, 3}) == Ints{1, 2, 0});
    CHECK(sorted({2, 2, 1, 2}, 1, {0, 4}) == Ints{2, 0, 1, 3});
    CHECK(sorted({}, 1, {0}).empty() && sorted({}, 3, {0, 0, 0}).empty());
    CHECK(sorted({INT64_MAX, INT64_MIN, -1, 0}, 1, {0, 4}) == Ints{1, 2, 3, 0});
    Random random(11);
    std::size_t wrong = 0;
    for (int round = 0; round < 600; ++round) {
        const std::size_t axes = 1 + random.below(3);
        Ints splits{0}, places;
        for (std::size_t rows = random.below(4); rows > 0; --rows) {  // short, just at the border, and long ones
            const std::size_t sizes[] = {random.below(6), 31 + random.below(4), random.below(120)};
            splits.push_back(splits.back() + static_cast<std::int64_t>(sizes[random.below(3)]));
        }
        const std::size_t kinds = 1 + random.below(20);  // few, so that many are equal
        const std::int64_t least[] = {0, (1 << 26) - 10, -10};
        for (std::size_t i = static_cast<std::size_t>(splits.back()) * axes; i > 0; --i) {
            places.push_back(least[round % 3] + static_cast<std::int64_t>(random.below(kinds)));
        }
        wrong += sorted(places, axes, splits) != sorted_by_definition(places, axes, splits);
    }
    CHECK(wrong == 0);
}

void invalid_splits_are_not_sorted() {
    const Ints none[] = {{0, 2}, {1, 3}, {0, 4}, {0, 2, 1, 3}, {-1, 3}, {0, INT64_MIN, 3}, {0, INT64_MAX}, {3}};
    for (const Ints& splits : none) CHECK(sorted({1, 2, 3}, 1, splits) == Ints{-1});
}

const checks::Test tests[] = {
    TEST(integers_are_kept_or_refused),
    TEST(the_first_value_that_does_not_fit_is_reported),
    TEST(values_are_appended_in_order),
    TEST(halves_round_to_nearest_even),
    TEST(halves_of_random_floats),
    TEST(halves_of_known_values),
    TEST(doubles_equal_their_floats),
    TEST(integers_are_exact_floats_or_refused),
    TEST(rows_are_padded_to_a_length),
    TEST(invalid_splits_are_not_padded),
    TEST(rows_are_taken_in_any_order),
    TEST(invalid_splits_are_not_taken),
    TEST(rows_of_several_sources_are_taken_and_padded),
    TEST(each_row_lies_within_the_values),
    TEST(sorted_indices_ascend_within_their_rows),
    TEST(invalid_splits_are_not_sorted),
};

}  // namespace

int main() { return checks::run(tests); }
