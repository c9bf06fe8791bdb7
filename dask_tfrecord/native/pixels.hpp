// Pixels of images: scale them to the range of another type, and resize them as TensorFlow's `ResizeBilinear` and
// `ScaleAndTranslate` do.
//
// Every step is one operation in float32, in the order of these kernels. The compiler must not contract a product and a
// sum to one operation with one rounding (-ffp-contract=off). Code for AVX2 then returns the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "machine.hpp"

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

// Round a level to the nearest integer, halves to even.
DTF_INLINE std::int32_t rounded(float level) {
    // The sum with 1.5 * 2^23 has no bits for a fraction, and the integer in its low bits. Levels are far below 2^22.
    const float sum = level + 12582912.0F;
    std::int32_t bits;
    std::memcpy(&bits, &sum, sizeof bits);
    return bits - 0x4B400000;
}

// Convert a level within the range of the output to its type.
template <class Out>
DTF_INLINE Out converted(float level) {
    if constexpr (std::is_integral_v<Out>) {
        return static_cast<Out>(rounded(level));
    } else {
        return static_cast<Out>(level);
    }
}

// Call `work` in code for AVX2, if the processor has it. The closure is a copy, so that no output aliases it.
template <class Work>
DTF_AVX2 void call_with_avx2(Work work) {
    work();
}

template <class Work>
void call_fastest(Work work) {
    if (has_avx2()) {
        call_with_avx2(work);
    } else {
        work();
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

#if defined(DTF_X86)
// Eight levels of a target row. The pixels on their left, and those on their right, are within 16 bytes of the source, at
// the offsets `order`.
struct Window {
    std::size_t left, right;
    std::uint8_t order[2][16];
    float distance[8];
};

// Return the windows of a row: nothing if 16 bytes are too few, or the processor lacks the instructions.
inline std::vector<Window> windows_of(const Neighbours& columns, std::size_t channels) {
    std::vector<Window> windows(has_avx2() ? (columns.first.size() * channels + 7) / 8 : 0);
    for (std::size_t x = 0, i = 0; x < columns.first.size() && !windows.empty(); ++x) {
        const std::size_t left = columns.first[x] * channels, right = columns.second[x] * channels;
        for (std::size_t c = 0; c < channels; ++c, ++i) {
            Window& window = windows[i / 8];
            if (i % 8 == 0) window = Window{left, right, {}, {}};
            const std::size_t offsets[] = {left - window.left + c, right - window.right + c};
            if (std::max(offsets[0], offsets[1]) > 15) return {};
            for (std::size_t side = 0; side < 2; ++side) window.order[side][i % 8] = static_cast<std::uint8_t>(offsets[side]);
            window.distance[i % 8] = columns.distance[x];
        }
    }
    return windows;
}

DTF_AVX2 inline __m256 levels_at(const std::uint8_t* from, const std::uint8_t* order, __m256 factor) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i ordered = _mm_shuffle_epi8(bytes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(order)));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(ordered)), factor);
}

// Interpolate a row between its columns. 16 bytes of each window have to be readable.
DTF_AVX2 inline void interpolate_windows(const std::uint8_t* row, const std::vector<Window>& windows, float factor,
                                         float* out) {
    for (const Window& window : windows) {
        const __m256 left = levels_at(row + window.left, window.order[0], _mm256_set1_ps(factor));
        const __m256 right = levels_at(row + window.right, window.order[1], _mm256_set1_ps(factor));
        const __m256 step = _mm256_mul_ps(_mm256_sub_ps(right, left), _mm256_loadu_ps(window.distance));
        _mm256_storeu_ps(out, _mm256_add_ps(left, step));
        out += 8;
    }
}
#endif

// Rows of an image, interpolated between columns: the last two, because the next rows of the output often need them again.
template <class Pixel>
class WideRows {
public:
    WideRows(const Pixel* pixels, const ImageShape& image, float factor, std::size_t width)
        : pixels_(pixels), image_(image), factor_(factor), columns_(image.width, width),
          scaled_(image.width * image.channels + 1) {  // one element more for the fourth channel of the last pixel
#if defined(DTF_X86)
        if constexpr (std::is_same_v<Pixel, std::uint8_t>) windows_ = windows_of(columns_, image.channels);
#endif
        for (Wide& each : wide_) each.levels.resize(width * image.channels + 8);
    }

    // Return the levels of a row; `kept` is a row that the caller still needs.
    const float* at(std::size_t row, std::size_t kept) {
        for (const Wide& each : wide_) {
            if (each.row == row) return each.levels.data();
        }
        Wide& free = wide_[wide_[0].row == kept ? 1 : 0];
        free.row = row;
        interpolate(row, free.levels.data());
        return free.levels.data();
    }

private:
    static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

    struct Wide {
        std::size_t row = none;
        std::vector<float> levels;
    };

    DTF_APART void interpolate(std::size_t row, float* levels) {
        const std::size_t channels = image_.channels, size = image_.width * channels;
#if defined(DTF_X86)
        if constexpr (std::is_same_v<Pixel, std::uint8_t>) {
            if (!windows_.empty() && (row + 1) * size + 16 <= image_.size()) {
                interpolate_windows(pixels_ + row * size, windows_, factor_, levels);
                return;
            }
        }
#endif
        scale_pixels(pixels_ + row * size, size, factor_, scaled_.data());
        switch (channels) {
            case 1:
                interpolate_columns(scaled_.data(), columns_, std::integral_constant<std::size_t, 1>(), levels);
                break;
            case 3:
                interpolate_columns(scaled_.data(), columns_, std::integral_constant<std::size_t, 3>(), levels);
                break;
            default:
                interpolate_columns(scaled_.data(), columns_, channels, levels);
        }
    }

    const Pixel* pixels_;
    ImageShape image_;
    float factor_;
    Neighbours columns_;
    std::vector<float> scaled_;
#if defined(DTF_X86)
    std::vector<Window> windows_;
#endif
    Wide wide_[2];
};

// Interpolate between two rows. The loops of images are compiled for the type of the pixels, or for that of the output:
// compiling them for each pair of types takes as long as the rest of the module.
template <class Out>
DTF_APART void interpolate_rows(const float* above, const float* below, float distance, std::size_t size, Out* out) {
    call_fastest([=]() DTF_INLINED {
        for (std::size_t i = 0; i < size; ++i) out[i] = converted<Out>(above[i] + (below[i] - above[i]) * distance);
    });
}

// Multiply pixels by `factor` and resize them to `height` by `width`. `out` has as many channels as the image. No size
// may be 0.
template <class Pixel, class Out>
void resize_pixels(const Pixel* pixels, const ImageShape& image, float factor, std::size_t height, std::size_t width,
                   Out* out) {
    const Neighbours rows(image.height, height);
    WideRows<Pixel> wide(pixels, image, factor, width);
    const std::size_t size = width * image.channels;
    for (std::size_t y = 0; y < height; ++y, out += size) {
        const float* above = wide.at(rows.first[y], rows.second[y]);
        const float* below = wide.at(rows.second[y], rows.first[y]);
        interpolate_rows(above, below, rows.distance[y], size, out);
    }
}

// A filter of `tf.image.resize`: Lanczos of radius 3, or a triangle; if `antialias`, as wide as the pixels it averages.
struct Filter {
    bool lanczos, antialias;

    bool operator==(const Filter& other) const { return lanczos == other.lanczos && antialias == other.antialias; }

    float weight(float distance) const {
        constexpr float pi = 3.14159265359F;
        if (!lanczos) return distance < 1.0F ? 1.0F - distance : 0.0F;
        if (distance > 3.0F || distance <= 1e-3F) return distance > 3.0F ? 0.0F : 1.0F;
        return 3.0F * std::sin(pi * distance) * std::sin(pi * distance / 3.0F) / (pi * pi * distance * distance);
    }
};

// The source pixels under the filter at each target pixel, and their weights.
struct Spans {
    std::size_t source = 0, target = 0;
    Filter filter{};
    std::vector<std::size_t> first, ends;  // the first pixel, and the end of the weights
    std::vector<float> weights;

    void fill() {
        const float scale = 1.0F / (static_cast<float>(target) / static_cast<float>(source));
        const float stretch = filter.antialias ? std::max(scale, 1.0F) : 1.0F, narrow = 1.0F / stretch;
        const float radius = (filter.lanczos ? 3.0F : 1.0F) * stretch;
        const auto pixel = [last = source - 1](float at) {
            // Float32 rounds the last pixel of a long row.
            return std::min(static_cast<std::size_t>(std::clamp(at, 0.0F, static_cast<float>(last))), last);
        };
        for (std::size_t i = 0; i < target; ++i) {
            const float centre = (static_cast<float>(i) + 0.5F) * scale;
            const std::size_t begin = pixel(std::ceil(centre - radius - 0.5F)), before = weights.size();
            const std::size_t end = std::max(pixel(std::floor(centre + radius - 0.5F)), begin) + 1;
            float sum = 0;
            for (std::size_t at = begin; at < end; ++at) {
                weights.push_back(filter.weight(std::abs((static_cast<float>(at) + 0.5F - centre) * narrow)));
                sum += weights.back();
            }
            const float whole = std::abs(sum) < 1000 * std::numeric_limits<float>::min() ? 0.0F : 1.0F / sum;
            for (std::size_t k = before; k < weights.size(); ++k) weights[k] *= whole;
            first.push_back(begin);
            ends.push_back(weights.size());
        }
    }
};

// Return the spans of one axis. A thread keeps its last ones: images often have one size. They are valid until the next
// call for this axis in the thread, which keeps no reference beyond one image.
inline const Spans& spans_of(std::size_t axis, std::size_t source, std::size_t target, const Filter& filter) {
    thread_local Spans kept[2];
    Spans& spans = kept[axis];
    if (spans.source != source || spans.target != target || !(spans.filter == filter)) {
        Spans made{source, target, filter, {}, {}, {}};
        made.fill();
        spans = std::move(made);
    }
    return spans;
}

// Add up the weighted pixels of a row under each target pixel.
DTF_INLINE void add_columns(const float* row, const Spans& columns, std::size_t channels, float* out) {
    const float* weight = columns.weights.data();
    for (std::size_t x = 0; x < columns.target; ++x, out += channels) {
        const float *past = columns.weights.data() + columns.ends[x], *level = row + columns.first[x] * channels;
        std::fill_n(out, channels, 0.0F);
        for (; weight < past; ++weight, level += channels) {
            for (std::size_t c = 0; c < channels; ++c) out[c] += *weight * level[c];
        }
    }
}

#if defined(DTF_X86)
// The same of three channels, computed as four: `row` and `out` have one element more, and the next pixel overwrites the
// fourth.
DTF_INLINE void add_three_columns(const float* row, const Spans& columns, float* out) {
    const float *weight = columns.weights.data(), *const weights = weight;
    const std::size_t *first = columns.first.data(), *end = columns.ends.data(), *const last = end + columns.target;
    for (; end < last; ++first, ++end, out += 3) {
        __m128 sums = _mm_setzero_ps();
        const float *level = row + *first * 3, *const past = weights + *end;
        const auto add = [&](std::size_t k) DTF_INLINED {
            sums = _mm_add_ps(sums, _mm_mul_ps(_mm_set1_ps(weight[k]), _mm_loadu_ps(level + 3 * k)));
        };
        for (; past - weight > 2; weight += 3, level += 9) add(0), add(1), add(2);
        for (; weight < past; ++weight, level += 3) add(0);
        _mm_storeu_ps(out, sums);
    }
}
#endif

// Add weighted pixels of a row to those above them.
template <class Pixel>
DTF_APART void add_row(const Pixel* from, std::size_t size, float factor, float weight, float* to) {
    call_fastest([=]() DTF_INLINED {
        for (std::size_t i = 0; i < size; ++i) to[i] += weight * (static_cast<float>(from[i]) * factor);
    });
}

// Write the weighted sums of the columns of a row. Integers are clipped. `levels` is scratch memory.
template <class Out>
DTF_APART void write_columns(const float* row, const Spans& columns, std::size_t channels, float* levels, Out* out) {
    call_fastest([=, &columns]() DTF_INLINED {
#if defined(DTF_X86)
        channels == 3 ? add_three_columns(row, columns, levels) : add_columns(row, columns, channels, levels);
#else
        add_columns(row, columns, channels, levels);
#endif
        for (std::size_t i = 0, size = columns.target * channels; i < size; ++i) {
            if constexpr (std::is_integral_v<Out>) {
                constexpr std::int32_t most = std::numeric_limits<Out>::max();
                out[i] = static_cast<Out>(std::min(std::max(rounded(levels[i]), 0), most));
            } else {
                out[i] = static_cast<Out>(levels[i]);
            }
        }
    });
}

// Multiply pixels by `factor` and resize them by weighted sums of rows, then of columns. No size may be 0.
template <class Pixel, class Out>
void filter_pixels(const Pixel* pixels, const ImageShape& image, float factor, const Filter& filter, std::size_t height,
                   std::size_t width, Out* out) {
    const Spans &rows = spans_of(0, image.height, height, filter), &columns = spans_of(1, image.width, width, filter);
    const std::size_t channels = image.channels, source_size = image.width * channels, size = width * channels;
    std::vector<float> row(source_size + 1), levels(size + 1);
    for (std::size_t y = 0, k = 0; y < height; ++y, out += size) {
        std::fill(row.begin(), row.end(), 0.0F);
        const Pixel* from = pixels + rows.first[y] * source_size;
        for (; k < rows.ends[y]; ++k, from += source_size) {
            add_row(from, source_size, factor, rows.weights[k], row.data());
        }
        write_columns(row.data(), columns, channels, levels.data(), out);
    }
}

}  // namespace dtf
