// Python bindings of operations on the pixels of images.
#include "pixels.hpp"
#include "png.hpp"

#include "binding.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
using Image = nb::ndarray<nb::numpy, T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

template <class Pixel, class Out>
void scale_pixels(const Image<const Pixel>& pixels, double factor, const Image<Out>& out) {
    for (std::size_t axis = 0; axis < 3; ++axis) {
        if (pixels.shape(axis) != out.shape(axis)) throw nb::value_error("pixels and out must have the same shape");
    }
    binding::without_gil([&] { dtf::scale_pixels(pixels.data(), pixels.size(), factor, out.data()); });
}

template <class Pixel, class Out>
void resize_pixels(const Image<const Pixel>& pixels, float factor, const Image<Out>& out, bool lanczos,
                   bool antialias) {
    const dtf::ImageShape image{pixels.shape(0), pixels.shape(1), pixels.shape(2)};
    if (pixels.size() == 0 || out.size() == 0 || image.channels != out.shape(2)) {
        throw nb::value_error("pixels and out must have the same number of channels, and no size may be 0");
    }
    binding::without_gil([&] {
        const dtf::Filter filter{lanczos, antialias};
        if (lanczos || antialias) {
            dtf::filter_pixels(pixels.data(), image, factor, filter, out.shape(0), out.shape(1), out.data());
        } else {
            dtf::resize_pixels(pixels.data(), image, factor, out.shape(0), out.shape(1), out.data());
        }
    });
}

std::size_t unfilter_png(const binding::Bytes& filtered, std::size_t pixel_size, bool swap,
                         const nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& out) {
    const dtf::FilteredRows source{filtered.data(), out.shape(0), out.shape(1), pixel_size};
    if (!source.is_valid(filtered.size()) || (swap && source.row_size % 2 != 0)) {
        throw nb::value_error("filtered must have one byte more per row than out, and rows must consist of pixels");
    }
    return binding::without_gil([&] { return dtf::unfilter_png(source, swap, out.data()); });
}

// The first definition has the docstring; the others are overloads.
template <class Pixel, class Out>
void add_types(nb::module_& module, const char* scale, const char* resize) {
    module.def("scale_pixels", &scale_pixels<Pixel, Out>, "pixels"_a.noconvert(), "factor"_a, "out"_a.noconvert(),
               scale);
    module.def("resize_pixels", &resize_pixels<Pixel, Out>, "pixels"_a.noconvert(), "factor"_a, "out"_a.noconvert(),
               "lanczos"_a = false, "antialias"_a = false, resize);
}

}  // namespace

void binding::add_pixels(nb::module_& module) {
    const char* scale = "Write pixels times `factor` to `out`, in the precision of `out`.";
    const char* resize = "Multiply pixels by `factor` and resize them to the shape of `out`, as `tf.image.resize` does.";
    add_types<std::uint8_t, std::uint8_t>(module, scale, resize);
    add_types<std::uint8_t, std::uint16_t>(module, scale, resize);
    add_types<std::uint8_t, float>(module, scale, resize);
    add_types<std::uint8_t, double>(module, scale, resize);
    add_types<std::uint16_t, std::uint16_t>(module, scale, resize);
    add_types<std::uint16_t, float>(module, scale, resize);
    add_types<std::uint16_t, double>(module, scale, resize);
    module.def("resize_pixels", &resize_pixels<float, float>, "pixels"_a.noconvert(), "factor"_a, "out"_a.noconvert(),
               "lanczos"_a = false, "antialias"_a = false, resize);
    module.def("unfilter_png", &unfilter_png, "filtered"_a.noconvert(), "pixel_size"_a, "swap"_a, "out"_a.noconvert(),
               "Undo the filters of PNG rows, swap bytes of 16-bit samples, return the rows before an unknown filter.");
}
