// Tests of the filters of PNG.
#include "checks.hpp"
#include "png_support.hpp"

namespace {

using namespace support;

// Rows of random bytes; each has the filter that `filter_of` returns.
template <class FilterOf>
std::string some_rows(std::size_t rows, std::size_t row_size, Random& random, FilterOf filter_of) {
    std::string bytes;
    for (std::size_t row = 0; row < rows; ++row) {
        bytes += static_cast<char>(filter_of(row));
        for (std::size_t i = 0; i < row_size; ++i) bytes += static_cast<char>(random.below(256));
    }
    return bytes;
}

void every_filter_follows_the_definition() {
    Random random(1);
    for (const std::size_t pixel : pixel_sizes) {
        for (const std::size_t width : {1u, 2u, 5u, 31u}) {
            for (std::size_t filter = 0; filter < 6; ++filter) {  // 5: each in turn
                const bool swap = pixel % 2 == 0 && random.below(2) == 0;
                const std::size_t size = width * pixel;
                const auto rows = some_rows(9, size, random, [&](std::size_t row) { return filter < 5 ? filter : row % 5; });
                const Unfiltered found = unfiltered(rows, 9, size, pixel, swap);
                CHECK(found.rows == 9 && found.bytes == unfiltered_by_definition(rows, size, pixel, swap).bytes);
            }
        }
    }
}

void paeth_chooses_as_defined_for_all_neighbours() {
    // Rows of two pixels: the second has all three neighbours.
    bool holds = true;
    for (int left = 0; left < 256; left += 17) {
        for (int above = 0; above < 256; above += 3) {
            for (int corner = 0; corner < 256; ++corner) {
                std::string rows{0, static_cast<char>(corner), static_cast<char>(above), 4};
                rows += static_cast<char>(left - corner);  // the first pixel of the row: its neighbour above is the corner
                rows += '\0';
                holds = holds && unfiltered(rows, 2, 2, 1, false).bytes == unfiltered_by_definition(rows, 2, 1, false).bytes;
            }
        }
    }
    CHECK(holds);
}

void unknown_filters_end_the_rows() {
    Random random(2);
    for (std::size_t bad = 0; bad < 4; ++bad) {
        for (const std::size_t filter : {5u, 6u, 128u, 255u}) {
            const std::string rows = some_rows(4, 6, random, [&](std::size_t row) { return row == bad ? filter : 4; });
            const Unfiltered found = unfiltered(rows, 4, 6, 6, true);
            CHECK(found.rows == bad && found.bytes == unfiltered_by_definition(rows, 6, 6, true).bytes);
        }
    }
}

void sizes_have_to_agree() {
    const auto valid = [](std::size_t size, std::size_t rows, std::size_t row_size, std::size_t pixel) {
        return dtf::FilteredRows{nullptr, rows, row_size, pixel}.is_valid(size);
    };
    CHECK(valid(14, 2, 6, 3) && valid(0, 0, 6, 3));
    CHECK(!valid(13, 2, 6, 3) && !valid(15, 2, 6, 3) && !valid(14, 1, 6, 3));
    CHECK(!valid(14, 2, 6, 4) && !valid(14, 2, 6, 5) && !valid(14, 2, 6, 0) && !valid(2, 2, 0, 1));
    CHECK(!valid(4, std::size_t{1} << 62, 7, 1) && !valid(0, std::size_t{1} << 61, 7, 1));
}

const checks::Test tests[] = {
    TEST(every_filter_follows_the_definition),
    TEST(paeth_chooses_as_defined_for_all_neighbours),
    TEST(unknown_filters_end_the_rows),
    TEST(sizes_have_to_agree),
};

}  // namespace

int main() { return checks::run(tests); }
