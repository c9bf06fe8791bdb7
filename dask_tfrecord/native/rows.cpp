// Python bindings of row operations on flat arrays, and of the release of freed memory.
#include "rows.hpp"

#include "binding.hpp"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace nb = nanobind;
using namespace nb::literals;
using binding::Bytes;
using binding::Integers;
using binding::OutputBytes;
using binding::OutputIntegers;

namespace {

// glibc keeps memory that a thread freed for that thread. With a pool of threads this adds up to a multiple of the
// memory in use.
void release_memory() {
#if defined(__GLIBC__)
    nb::gil_scoped_release released;
    malloc_trim(0);
#endif
}

void take_rows(const Bytes& values, const Integers& splits, std::size_t item, const Integers& index,
               const OutputBytes& out) {
    if (splits.size() == 0) throw nb::value_error("splits must not be empty");
    const bool done = binding::without_gil([&] {
        return dtf::take_rows(dtf::Cursor(values.data(), values.size()), splits.data(), splits.size() - 1, item,
                              index.data(), index.size(), out.data(), out.size());
    });
    if (!done) {
        throw nb::value_error(
            "splits must ascend within the values, index must name existing rows, and out must have their total size");
    }
}

void pad_rows(const Bytes& values, const Integers& splits, const nb::bytes& filler, std::size_t length,
              const OutputBytes& out) {
    const std::size_t item = filler.size(), rows = splits.size() > 0 ? splits.size() - 1 : 0;
    if (item == 0 || splits.size() == 0) throw nb::value_error("filler and splits must not be empty");
    if (length > dtf::most_values / item || rows > dtf::most_values || out.size() != rows * length * item) {
        throw nb::value_error("out must have `length` items for each row");
    }
    const auto* filling = reinterpret_cast<const std::uint8_t*>(filler.c_str());
    const bool done = binding::without_gil([&] {
        return dtf::pad_rows(dtf::Cursor(values.data(), values.size()), splits.data(), rows, item, length, filling,
                             out.data());
    });
    if (!done) throw nb::value_error("splits must ascend within the values, and rows have at most `length` items");
}

void sort_rows(const Integers& indices, std::size_t axes, const Integers& splits, const OutputIntegers& order) {
    if (axes == 0 || splits.size() == 0 || indices.size() % axes != 0 || order.size() != indices.size() / axes) {
        throw nb::value_error("indices need `axes` integers for each item, order needs one, and splits must not be empty");
    }
    const bool done = binding::without_gil([&] {
        return dtf::sort_rows(indices.data(), order.size(), axes, splits.data(), splits.size() - 1, order.data());
    });
    if (!done) throw nb::value_error("splits must ascend from 0 to the number of items");
}

}  // namespace

void binding::add_rows(nb::module_& module) {
    module.def("release_memory", &release_memory, "Return freed memory that the allocator keeps to the system.");
    module.def("take_rows", &take_rows, "values"_a.noconvert(), "splits"_a.noconvert(), "item"_a,
               "index"_a.noconvert(), "out"_a.noconvert(),
               "Copy the rows `index`, of items of `item` bytes, one after the other to `out`.");
    module.def("pad_rows", &pad_rows, "values"_a.noconvert(), "splits"_a.noconvert(), "filler"_a, "length"_a,
               "out"_a.noconvert(),
               "Copy each row to a slot of `length` items of `out` and fill the rest of the slot with `filler`.");
    module.def("sort_rows", &sort_rows, "indices"_a.noconvert(), "axes"_a, "splits"_a.noconvert(),
               "order"_a.noconvert(),
               "Write the order that sorts the items of each row by their indices to `order`; the sort is stable.");
}
