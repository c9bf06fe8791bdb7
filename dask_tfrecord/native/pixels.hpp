// Pixels of images: scale them to the range of another type, and resize them as TensorFlow's `ResizeBilinear` does.
//
// Every step is one operation in float32, in the order of that kernel. The compiler must not contract a product and a
// sum to one operation with one rounding (-ffp-contract=off).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace dtf {

// Height, width and channels of an image; its pixels are contiguous.
struct ImageShape {
    std::size_t height, width, channels;

    std::size_t size() const { return height * width * channels; }
};

// The two source pixels that each target pixel lies between, and its distance to the first.
struct Neighbours {
    std::vector<std::size_t> first, second;
    std::vector<float> distance;

    Neighbours(std::size_t source, std::size_t target) : first(target), second(target), distance(target) {
        const float scale = static_cast<float>(source) / static_cast<float>(target);
        for (std::size_t i = 0; i < target; ++i) {
            // Centres of pixels lie at halves.
            const float position = (static_cast<float>(i) + 0.5F) * scale - 0.5F;
            const float floor = std::floor(position);
            second[i] = std::min(static_cast<std::size_t>(std::max(std::ceil(position), 0.0F)), source - 1);
            first[i] = std::min(static_cast<std::size_t>(std::max(floor, 0.0F)), second[i]);
            distance[i] = position - floor;
        }
    }
};

// Convert a level to the type of the output. Integers are rounded to the nearest, halves to even.
template <class Out>
Out converted(float level) {
    if constexpr (std::is_integral_v<Out>) {
        // Adding 1.5 * 2^23 leaves no bit for a fraction. Levels are far below 2^22.
        constexpr float integers = 12582912.0F;
        return static_cast<Out>(static_cast<std::int32_t>((level + integers) - integers));
    } else {
        return static_cast<Out>(level);
    }
}

// Multiply each of `count` pixels by `factor`, in float64 if that is the type of the output, otherwise in float32.
template <class Pixel, class Out>
void scale_pixels(const Pixel* pixels, std::size_t count, double factor, Out* out) {
    using Number = std::conditional_t<std::is_same_v<Out, double>, double, float>;
    const auto by = static_cast<Number>(factor);
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<Out>(static_cast<Number>(pixels[i]) * by);
}

// Interpolate a row between its columns. `channels` is a constant for the usual numbers, so that the inner loop is
// unrolled. Three channels are computed as four, one instruction each: `row` and `out` have one element more, and the
// next pixel overwrites the fourth.
template <class Channels>
void interpolate_columns(const float* row, const Neighbours& columns, Channels channels, float* out) {
    const std::size_t width = columns.first.size();
    for (std::size_t x = 0; x < width; ++x) {
        const float* left = row + columns.first[x] * channels;
        const float* right = row + columns.second[x] * channels;
        const float distance = columns.distance[x];
        if constexpr (std::is_same_v<Channels, std::integral_constant<std::size_t, 3>>) {
            float levels[4];
            for (std::size_t c = 0; c < 4; ++c) levels[c] = left[c] + (right[c] - left[c]) * distance;
            std::memcpy(out, levels, sizeof levels);
        } else {
            for (std::size_t c = 0; c < channels; ++c) out[c] = left[c] + (right[c] - left[c]) * distance;
        }
        out += channels;
    }
}

// Multiply pixels by `factor` and resize them to `height` by `width`. `out` has as many channels as the image. No size
// may be 0.
template <class Pixel, class Out>
void resize_pixels(const Pixel* pixels, const ImageShape& image, float factor, std::size_t height, std::size_t width,
                   Out* out) {
    const Neighbours rows(image.height, height), columns(image.width, width);
    const std::size_t channels = image.channels, size = width * channels;

    // One element more for the fourth channel of the last pixel.
    const std::size_t source_size = image.width * channels;
    std::vector<float> scaled(source_size + 1);

    // The last two rows of the image, interpolated between columns: the next rows of the output often need them again.
    constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
    struct Wide {
        std::size_t row = none;
        std::vector<float> levels;
    };
    Wide wide[2];
    for (Wide& each : wide) each.levels.resize(size + 1);

    // Return the levels of a row; `kept` is a row that the caller still needs.
    const auto levels_of = [&](std::size_t row, std::size_t kept) -> const float* {
        for (const Wide& each : wide) {
            if (each.row == row) return each.levels.data();
        }
        Wide& free = wide[wide[0].row == kept ? 1 : 0];
        scale_pixels(pixels + row * source_size, source_size, factor, scaled.data());
        float* levels = free.levels.data();
        switch (channels) {
            case 1:
                interpolate_columns(scaled.data(), columns, std::integral_constant<std::size_t, 1>(), levels);
                break;
            case 3:
                interpolate_columns(scaled.data(), columns, std::integral_constant<std::size_t, 3>(), levels);
                break;
            default:
                interpolate_columns(scaled.data(), columns, channels, levels);
        }
        free.row = row;
        return levels;
    };

    for (std::size_t y = 0; y < height; ++y) {
        const float* above = levels_of(rows.first[y], rows.second[y]);
        const float* below = levels_of(rows.second[y], rows.first[y]);
        const float distance = rows.distance[y];
        for (std::size_t i = 0; i < size; ++i) out[i] = converted<Out>(above[i] + (below[i] - above[i]) * distance);
        out += size;
    }
}

}  // namespace dtf
