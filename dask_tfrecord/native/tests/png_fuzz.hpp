// Fuzzing of png.hpp: rows of any content and filters, whose sizes may disagree.
#pragma once

#include "fuzzing.hpp"
#include "png_support.hpp"

namespace fuzzing {

inline void fuzz_png(Random& random) {
    const std::size_t pixel = pixel_sizes[random.below(std::size(pixel_sizes))];
    const std::size_t rows = random.below(12), row_size = pixel * (1 + random.below(40));
    const std::size_t known = random.below(4) == 0 ? 256 : 5;
    std::string filtered;
    for (std::size_t row = 0; row < rows; ++row) {
        filtered += static_cast<char>(random.below(known));
        // Small steps, extreme values and noise: ties between neighbours are frequent.
        const std::size_t range = std::size_t{2} << random.below(8);
        for (std::size_t i = 0; i < row_size; ++i) {
            filtered += static_cast<char>(random.below(8) == 0 ? 255 * random.below(2) : random.below(range));
        }
    }
    const bool swap = row_size % 2 == 0 && random.below(2) == 0;
    const Unfiltered expected = unfiltered_by_definition(filtered, row_size, pixel, swap);
    const Unfiltered found = unfiltered(filtered, rows, row_size, pixel, swap);
    REQUIRE(found.rows == expected.rows && found.bytes == expected.bytes);

    // Sizes as a hostile header could announce them: what is valid can be read.
    const std::size_t sizes[] = {0, 1, rows + 1, rows * 2, SIZE_MAX, SIZE_MAX / (row_size + 1) + 1};
    const std::size_t other_rows = sizes[random.below(std::size(sizes))], other_size = random.below(2 * row_size);
    const std::size_t other_pixel = random.below(10);
    const dtf::FilteredRows other{nullptr, other_rows, other_size, other_pixel};
    if (other.is_valid(filtered.size())) {
        REQUIRE(other_rows <= filtered.size() && other_rows * (other_size + 1) == filtered.size());
        REQUIRE(unfiltered(filtered, other_rows, other_size, other_pixel, false).rows <= other_rows);
    }
}

}  // namespace fuzzing
