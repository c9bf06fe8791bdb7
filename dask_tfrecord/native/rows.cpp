// The Python face of what puts rows of flat arrays together, and gives memory back.
#include "rows.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Splits = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Order = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Sizes in bytes are computed from counts, and stay far from wrapping.
constexpr std::size_t most_items = std::size_t{1} << 59;

// A list of bytes objects: twice as fast as slices of one bytes object.
nb::object bytes_list(const Bytes& values, const Splits& splits) {
    const std::size_t size = splits.size() > 0 ? splits.size() - 1 : 0;
    nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(size)));
    if (!list.is_valid()) throw nb::python_error();
    for (std::size_t i = 0; i < size; ++i) {
        const std::int64_t begin = splits.data()[i];
        const std::int64_t end = splits.data()[i + 1];
        if (begin < 0 || begin > end || static_cast<std::uint64_t>(end) > values.size()) {
            throw nb::value_error("splits ascend within the values");
        }
        const char* data = reinterpret_cast<const char*>(values.data()) + begin;
        PyObject* item = PyBytes_FromStringAndSize(data, static_cast<Py_ssize_t>(end - begin));
        if (item == nullptr) throw nb::python_error();
        PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), item);
    }
    return list;
}

// What threads have freed, glibc keeps for them: with a pool of writing threads that is many times what is in use.
void release_memory() {
#if defined(__GLIBC__)
    nb::gil_scoped_release released;
    malloc_trim(0);
#endif
}

// The rows of `index`, of items of so many bytes.
void take_rows(const Bytes& values, const Splits& splits, std::size_t item, const Splits& index, const Memory& out) {
    if (splits.size() == 0) throw nb::value_error("splits have an end");
    bool taken;
    {
        nb::gil_scoped_release released;
        taken = dtf::take_rows(dtf::Cursor(values.data(), values.size()), splits.data(), splits.size() - 1, item,
                               index.data(), index.size(), out.data(), out.size());
    }
    if (!taken) throw nb::value_error("rows that there are lie within the values, and the memory has just their size");
}

// Rows of bytes, `item` of them each, filled up to `length` of them.
void pad_rows(const Bytes& values, const Splits& splits, const nb::bytes& filler, std::size_t length,
              const Memory& out) {
    const std::size_t item = filler.size(), rows = splits.size() > 0 ? splits.size() - 1 : 0;
    if (item == 0 || splits.size() == 0) throw nb::value_error("an item has a byte or more, and splits have an end");
    if (length > most_items / item || rows > most_items || out.size() != rows * length * item) {
        throw nb::value_error("the memory has a place for each row");
    }
    const auto* filling = reinterpret_cast<const std::uint8_t*>(filler.c_str());
    bool padded;
    {
        nb::gil_scoped_release released;
        padded = dtf::pad_rows(dtf::Cursor(values.data(), values.size()), splits.data(), rows, item, length, filling,
                               out.data());
    }
    if (!padded) throw nb::value_error("rows lie within the values, and none is longer than what it is filled up to");
}

// The order in which the places of each row ascend.
void sort_rows(const Splits& places, std::size_t axes, const Splits& splits, const Order& order) {
    if (axes == 0 || splits.size() == 0 || places.size() % axes != 0 || order.size() != places.size() / axes) {
        throw nb::value_error("a place has an index for each axis, and the order one number for each place");
    }
    bool sorted;
    {
        nb::gil_scoped_release released;
        sorted = dtf::sort_rows(places.data(), order.size(), axes, splits.data(), splits.size() - 1, order.data());
    }
    if (!sorted) throw nb::value_error("splits ascend from 0 to the number of places");
}

}  // namespace

void add_rows(nb::module_& module) {
    // Arguments are not converted: what is written would go away with a copy.
    module.def("release_memory", &release_memory);
    module.def("take_rows", &take_rows, "values"_a.noconvert(), "splits"_a.noconvert(), "item"_a,
               "index"_a.noconvert(), "out"_a.noconvert());
    module.def("pad_rows", &pad_rows, "values"_a.noconvert(), "splits"_a.noconvert(), "filler"_a, "length"_a,
               "out"_a.noconvert());
    module.def("sort_rows", &sort_rows, "places"_a.noconvert(), "axes"_a, "splits"_a.noconvert(),
               "order"_a.noconvert());
    module.def("bytes_list", &bytes_list, "values"_a.noconvert(), "splits"_a.noconvert());
}
