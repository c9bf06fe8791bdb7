// Filtered rows of PNG: undo the filters, as https://www.w3.org/TR/png-3/#9Filters defines them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "machine.hpp"

namespace dtf {

// Rows of an image or of one pass of an interlaced one. Each has a byte for its filter, then `row_size` bytes.
struct FilteredRows {
    const std::uint8_t* data;
    std::size_t rows, row_size;
    std::size_t pixel_size;  // bytes to the same sample of the pixel before; 1 if pixels are smaller than a byte

    bool is_valid(std::size_t size) const {
        const std::size_t pixel = pixel_size;
        const bool known = pixel == 1 || pixel == 2 || pixel == 3 || pixel == 4 || pixel == 6 || pixel == 8;
        // Divide, because a product of unchecked sizes could overflow.
        return known && row_size > 0 && row_size % pixel == 0 && size % (row_size + 1) == 0 && size / (row_size + 1) == rows;
    }
};

#if defined(DTF_X86)

// Words that a pixel of 3 or 6 bytes consists of. One copy of as many bytes would pass through memory.
template <std::size_t Pixel>
using PixelHead = std::conditional_t<Pixel == 8, std::uint64_t,
                                     std::conditional_t<(Pixel >= 4), std::uint32_t,
                                                        std::conditional_t<(Pixel >= 2), std::uint16_t, std::uint8_t>>>;
template <std::size_t Pixel>
using PixelTail = std::conditional_t<Pixel == 6, std::uint16_t, std::uint8_t>;

template <std::size_t Pixel>
__m128i load_pixel(const std::uint8_t* from) {
    constexpr std::size_t head = sizeof(PixelHead<Pixel>);
    std::uint64_t bytes = load<PixelHead<Pixel>>(from);
    if constexpr (head < Pixel) bytes |= std::uint64_t{load<PixelTail<Pixel>>(from + head)} << (8 * head);
    return _mm_unpacklo_epi8(_mm_cvtsi64_si128(static_cast<long long>(bytes)), _mm_setzero_si128());
}

template <std::size_t Pixel>
void store_pixel(__m128i pixel, std::uint8_t* out) {
    constexpr std::size_t head = sizeof(PixelHead<Pixel>);
    const auto bytes = static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_packus_epi16(pixel, pixel)));
    const auto first = static_cast<PixelHead<Pixel>>(bytes);
    std::memcpy(out, &first, head);
    if constexpr (head < Pixel) {
        const auto rest = static_cast<PixelTail<Pixel>>(bytes >> (8 * head));
        std::memcpy(out + head, &rest, sizeof rest);
    }
}

// Undo Paeth's filter, with the samples of a pixel side by side. With low and high as the smaller and the larger of left
// and above, the nearest to left + above - corner is high if 3 * corner - left - above <= low, low if it is >= high, and
// otherwise corner. Each pixel depends on the one before, so few steps follow `left`.
template <std::size_t Pixel>
void undo_paeth(const std::uint8_t* from, const std::uint8_t* above, std::size_t size, std::uint8_t* out) {
    __m128i left = _mm_setzero_si128(), corner = left;
    for (std::size_t i = 0; i < size; i += Pixel) {
        const __m128i up = load_pixel<Pixel>(above + i);
        const __m128i rest = _mm_sub_epi16(_mm_add_epi16(corner, _mm_add_epi16(corner, corner)), up);
        const __m128i low = _mm_min_epi16(left, up), high = _mm_max_epi16(left, up);
        const __m128i threshold = _mm_sub_epi16(rest, left);
        const __m128i is_corner = _mm_cmpgt_epi16(high, threshold), is_not_high = _mm_cmpgt_epi16(threshold, low);
        const __m128i other = _mm_xor_si128(low, _mm_and_si128(is_corner, _mm_xor_si128(low, corner)));
        const __m128i nearest = _mm_xor_si128(high, _mm_and_si128(is_not_high, _mm_xor_si128(high, other)));
        left = _mm_and_si128(_mm_add_epi16(nearest, load_pixel<Pixel>(from + i)), _mm_set1_epi16(0xff));
        store_pixel<Pixel>(left, out + i);
        corner = up;
    }
}

#else

// The neighbour that is nearest to left + above - corner; the first of those that are equally near.
inline int paeth_predictor(int left, int above, int corner) {
    const int to_left = std::abs(above - corner);
    const int to_above = std::abs(left - corner);
    const int to_corner = std::abs(left + above - 2 * corner);
    const int other = to_above <= to_corner ? above : corner;
    return to_left <= to_above && to_left <= to_corner ? left : other;
}

#endif

// Undo the filter of one row; false if it is unknown. `Pixel` is a constant, so that the samples of a pixel are kept in
// registers.
template <std::size_t Pixel>
bool unfilter_row(unsigned filter, const std::uint8_t* from, const std::uint8_t* above, std::size_t size,
                  std::uint8_t* out) {
    const auto by_pixel = [&](auto predict) {
        int left[Pixel] = {}, corner[Pixel] = {};
        for (std::size_t i = 0; i < size; i += Pixel) {
            for (std::size_t c = 0; c < Pixel; ++c) {
                const int up = above[i + c];
                left[c] = (from[i + c] + predict(left[c], up, corner[c])) & 0xff;
                corner[c] = up;
            }
            for (std::size_t c = 0; c < Pixel; ++c) out[i + c] = static_cast<std::uint8_t>(left[c]);
        }
        return true;
    };
    switch (filter) {
        case 0:
            for (std::size_t i = 0; i < size; ++i) out[i] = from[i];
            return true;
        case 1: return by_pixel([](int before, int, int) { return before; });
        case 2:
            for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::uint8_t>(from[i] + above[i]);
            return true;
        case 3: return by_pixel([](int before, int up, int) { return (before + up) / 2; });
        case 4:
#if defined(DTF_X86)
            undo_paeth<Pixel>(from, above, size, out);
            return true;
#else
            return by_pixel(paeth_predictor);
#endif
        default: return false;
    }
}

// Exchange the two bytes of each sample.
inline void swap_bytes(std::uint8_t* row, std::size_t size) {
    for (std::size_t i = 0; i + 1 < size; i += 2) std::swap(row[i], row[i + 1]);
}

template <std::size_t Pixel>
std::size_t unfilter_rows(const FilteredRows& source, bool swap, std::uint8_t* out) {
    const std::size_t size = source.row_size;
    const std::vector<std::uint8_t> zeros(size);
    const std::uint8_t* above = zeros.data();
    std::size_t row = 0;
    for (const std::uint8_t* from = source.data; row < source.rows; ++row, from += size + 1) {
        std::uint8_t* target = out + row * size;
        if (!unfilter_row<Pixel>(*from, from + 1, above, size, target)) break;
        // The next row needs the bytes of this one in the order of the file.
        if (swap && row > 0) swap_bytes(target - size, size);
        above = target;
    }
    if (swap && row > 0) swap_bytes(out + (row - 1) * size, size);
    return row;
}

// Undo the filters of valid rows and write `rows * row_size` bytes. `swap` exchanges the bytes of samples of 16 bits.
// Return the number of rows before the first whose filter is unknown: `rows` if all are written.
inline std::size_t unfilter_png(const FilteredRows& source, bool swap, std::uint8_t* out) {
    switch (source.pixel_size) {
        case 1: return unfilter_rows<1>(source, swap, out);
        case 2: return unfilter_rows<2>(source, swap, out);
        case 3: return unfilter_rows<3>(source, swap, out);
        case 4: return unfilter_rows<4>(source, swap, out);
        case 6: return unfilter_rows<6>(source, swap, out);
        default: return unfilter_rows<8>(source, swap, out);
    }
}

}  // namespace dtf
