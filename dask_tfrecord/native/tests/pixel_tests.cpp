// Tests of scaling and resizing pixels.
#include "checks.hpp"
#include "pixels.hpp"

#include <memory>

namespace {

using dtf::ImageShape;

// A heap block of exactly this size, so that the sanitizers see an access past its end.
template <class T>
std::unique_ptr<T[]> block(std::size_t size) {
    return std::make_unique<T[]>(size);
}

// The value of one channel, from the definition: positions in double precision, interpolated by columns, then by rows.
double expected(const std::uint8_t* pixels, const ImageShape& image, std::size_t height, std::size_t width,
                std::size_t y, std::size_t x, std::size_t c) {
    const auto between = [](std::size_t source, std::size_t target, std::size_t i, std::size_t& first,
                            std::size_t& second) {
        const double at = (static_cast<double>(i) + 0.5) * static_cast<double>(source) / static_cast<double>(target) - 0.5;
        const double last = static_cast<double>(source - 1);
        const double inside = std::min(std::max(at, 0.0), last);
        first = static_cast<std::size_t>(inside);
        second = std::min(first + 1, source - 1);
        return inside - static_cast<double>(first);
    };
    std::size_t top, bottom, left, right;
    const double down = between(image.height, height, y, top, bottom);
    const double across = between(image.width, width, x, left, right);
    const auto at = [&](std::size_t row, std::size_t column) {
        return static_cast<double>(pixels[(row * image.width + column) * image.channels + c]);
    };
    const double above = at(top, left) + (at(top, right) - at(top, left)) * across;
    const double below = at(bottom, left) + (at(bottom, right) - at(bottom, left)) * across;
    return above + (below - above) * down;
}

void resized_images_follow_the_definition() {
    const ImageShape shapes[] = {{1, 1, 1}, {1, 5, 3}, {7, 1, 4}, {2, 2, 3}, {9, 13, 1}, {16, 11, 3}, {5, 6, 2}};
    const std::size_t sizes[][2] = {{1, 1}, {2, 3}, {5, 5}, {16, 11}, {40, 3}, {31, 37}};
    for (const ImageShape& image : shapes) {
        const auto pixels = block<std::uint8_t>(image.size());
        for (std::size_t i = 0; i < image.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * i * 37 + 11 * i);
        for (const auto& [height, width] : sizes) {
            const std::size_t count = height * width * image.channels;
            const auto floats = block<float>(count);
            const auto bytes = block<std::uint8_t>(count);
            dtf::resize_pixels(pixels.get(), image, 1.0F, height, width, floats.get());
            dtf::resize_pixels(pixels.get(), image, 1.0F, height, width, bytes.get());
            // Pixels of another type take another way to the same bits.
            const auto levels = block<float>(image.size()), same = block<float>(count);
            std::copy_n(pixels.get(), image.size(), levels.get());
            dtf::resize_pixels(levels.get(), image, 1.0F, height, width, same.get());
            CHECK(std::equal(same.get(), same.get() + count, floats.get()));
            double farthest = 0;
            std::size_t unrounded = 0;
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t c = i % image.channels, x = i / image.channels % width, y = i / image.channels / width;
                const double wanted = expected(pixels.get(), image, height, width, y, x, c);
                farthest = std::max(farthest, std::abs(wanted - static_cast<double>(floats[i])));
                if (static_cast<float>(bytes[i]) != std::nearbyint(floats[i])) ++unrounded;
            }
            CHECK(farthest < 1e-2);
            CHECK(unrounded == 0);
        }
    }
}

// The weights of the pixels of a row at each target pixel, from the definition, in double precision.
std::vector<std::vector<double>> weights_of(std::size_t source, std::size_t target, const dtf::Filter& filter) {
    std::vector<std::vector<double>> rows(target, std::vector<double>(source));
    const double scale = static_cast<double>(source) / static_cast<double>(target), pi = std::acos(-1.0);
    for (std::size_t i = 0; i < target; ++i) {
        double sum = 0;
        for (std::size_t at = 0; at < source; ++at) {
            const double apart = std::abs(static_cast<double>(at) + 0.5 - (static_cast<double>(i) + 0.5) * scale);
            const double x = filter.antialias ? apart / std::max(scale, 1.0) : apart;
            double& weight = rows[i][at];
            weight = std::max(1 - x, 0.0);
            if (filter.lanczos) weight = x > 3 ? 0 : x < 1e-3 ? 1 : 3 * std::sin(pi * x) * std::sin(pi * x / 3) / (pi * pi * x * x);
            sum += weight;
        }
        for (double& weight : rows[i]) weight /= sum;
    }
    return rows;
}

void filtered_images_follow_the_definition() {
    const ImageShape shapes[] = {{1, 1, 1}, {1, 5, 3}, {7, 1, 4}, {2, 2, 3}, {9, 130, 1}, {16, 11, 3}, {50, 6, 2}};
    const std::size_t sizes[][2] = {{1, 1}, {2, 3}, {5, 5}, {16, 11}, {40, 3}};
    const dtf::Filter filters[] = {{true, true}, {true, false}, {false, true}};
    for (const ImageShape& image : shapes) {
        const auto pixels = block<std::uint8_t>(image.size());
        for (std::size_t i = 0; i < image.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * i * 37 + 11 * i);
        for (const auto& [height, width] : sizes) {
            for (const dtf::Filter& filter : filters) {
                const std::size_t count = height * width * image.channels;
                const auto floats = block<float>(count);
                const auto bytes = block<std::uint8_t>(count);
                dtf::filter_pixels(pixels.get(), image, 1.0F, filter, height, width, floats.get());
                dtf::filter_pixels(pixels.get(), image, 1.0F, filter, height, width, bytes.get());
                const auto down = weights_of(image.height, height, filter), across = weights_of(image.width, width, filter);
                double farthest = 0;
                std::size_t unrounded = 0;
                for (std::size_t i = 0; i < count; ++i) {
                    const std::size_t c = i % image.channels, x = i / image.channels % width, y = i / image.channels / width;
                    double wanted = 0;
                    for (std::size_t pixel = 0; pixel < image.height * image.width; ++pixel) {
                        const double weight = down[y][pixel / image.width] * across[x][pixel % image.width];
                        wanted += weight * pixels[pixel * image.channels + c];
                    }
                    farthest = std::max(farthest, std::abs(wanted - static_cast<double>(floats[i])));
                    const float clipped = std::min(std::max(std::nearbyint(floats[i]), 0.0F), 255.0F);
                    if (static_cast<float>(bytes[i]) != clipped) ++unrounded;
                }
                CHECK(farthest < 1e-2);
                CHECK(unrounded == 0);
            }
        }
    }
}

void levels_are_rounded_to_even() {
    for (std::uint32_t level = 0; level < 65535; ++level) {
        const auto whole = static_cast<float>(level);
        const std::uint32_t even = level % 2 == 0 ? level : level + 1;
        if (dtf::converted<std::uint16_t>(whole) != level || dtf::converted<std::uint16_t>(whole + 0.5F) != even) {
            CHECK(level == 0);
        }
    }
    CHECK(dtf::converted<std::uint8_t>(254.75F) == 255);
}

void pixels_are_scaled_in_the_precision_of_the_output() {
    const std::uint16_t pixels[] = {0, 1, 65535};
    float single[3];
    double precise[3];
    std::uint16_t same[3];
    dtf::scale_pixels(pixels, 3, 1.0 / 65535, single);
    dtf::scale_pixels(pixels, 3, 1.0 / 65535, precise);
    dtf::scale_pixels(pixels, 3, 1.0, same);
    CHECK(single[0] == 0 && single[1] == 1.0F / 65535 && single[2] == 1);
    CHECK(precise[1] == 1.0 / 65535 && precise[2] == 1);
    CHECK(same[1] == 1 && same[2] == 65535);
    const std::uint8_t bytes[] = {0, 3, 255};
    dtf::scale_pixels(bytes, 3, 257, same);
    CHECK(same[0] == 0 && same[1] == 771 && same[2] == 65535);
}

const checks::Test tests[] = {
    TEST(resized_images_follow_the_definition),
    TEST(filtered_images_follow_the_definition),
    TEST(levels_are_rounded_to_even),
    TEST(pixels_are_scaled_in_the_precision_of_the_output),
};

}  // namespace

int main() { return checks::run(tests); }
