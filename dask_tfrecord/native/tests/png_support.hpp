// Filtered rows of PNG, undone byte by byte from the definition of the filters.
#pragma once

#include "png.hpp"
#include "support.hpp"

namespace support {

constexpr std::size_t pixel_sizes[] = {1, 2, 3, 4, 6, 8};

struct Unfiltered {
    std::size_t rows = 0;  // before the first with an unknown filter
    std::string bytes;     // of these rows
};

inline Unfiltered unfiltered_by_definition(const std::string& filtered, std::size_t row_size, std::size_t pixel_size,
                                           bool swap) {
    Unfiltered found;
    const auto byte_at = [&](std::size_t row, std::size_t i) {
        return static_cast<int>(static_cast<unsigned char>(found.bytes[row * row_size + i]));
    };
    for (std::size_t at = 0; at < filtered.size(); at += row_size + 1, ++found.rows) {
        const auto filter = static_cast<unsigned char>(filtered[at]);
        if (filter > 4) break;
        for (std::size_t i = 0; i < row_size; ++i) {
            const bool has_left = i >= pixel_size, has_above = found.rows > 0;
            const int a = has_left ? byte_at(found.rows, i - pixel_size) : 0;
            const int b = has_above ? byte_at(found.rows - 1, i) : 0;
            const int c = has_left && has_above ? byte_at(found.rows - 1, i - pixel_size) : 0;
            const int estimate = a + b - c;
            const int pa = std::abs(estimate - a), pb = std::abs(estimate - b), pc = std::abs(estimate - c);
            const int nearest = pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
            const int added[] = {0, a, b, (a + b) / 2, nearest};
            found.bytes += static_cast<char>(static_cast<unsigned char>(filtered[at + 1 + i]) + added[filter]);
        }
    }
    for (std::size_t i = 0; swap && i + 1 < found.bytes.size(); i += 2) std::swap(found.bytes[i], found.bytes[i + 1]);
    return found;
}

// The same by the native core, in blocks that ASan guards to the byte.
inline Unfiltered unfiltered(const std::string& filtered, std::size_t rows, std::size_t row_size,
                             std::size_t pixel_size, bool swap) {
    const Exact block(filtered);
    Exact out(std::string(rows * row_size, '\xee'));
    const std::size_t found = dtf::unfilter_png({block.data(), rows, row_size, pixel_size}, swap, out.data());
    return {found, std::string(reinterpret_cast<const char*>(out.data()), found * row_size)};
}

}  // namespace support
