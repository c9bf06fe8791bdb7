// Python bindings of row operations on flat arrays, and of the release of freed memory.
#include "rows.hpp"

#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <optional>

#include "binding.hpp"

#if defined(__GLIBC__)
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
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
    binding::release_anchors();
#if defined(__GLIBC__)
    binding::GilReleased released;
    malloc_trim(0);
#endif
}

// glibc reserves 64 MiB of addresses for each thread that allocates. Where addresses are limited (`ulimit -v`), they are
// used up long before memory is, so threads share what one GiB of them allows. A limit that the user set remains.
void share_addresses() {
#if defined(__GLIBC__)
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY || std::getenv("MALLOC_ARENA_MAX")) return;
    mallopt(M_ARENA_MAX, static_cast<int>(std::clamp<rlim_t>(limit.rlim_cur >> 30, 1, 1024)));
#endif
}

// glibc returns freed memory at the end of its heap if there is more than twice the largest block that it ever unmapped.
// Smaller arrays of a chunk are freed together: returning them costs a page fault for each page of the next chunk.
// Limits that the user set remain.
void keep_freed_memory() {
#if defined(__GLIBC__)
    void* volatile block = std::malloc(std::size_t{16} << 20);  // its pages are never touched
    std::free(block);
#endif
}

using Indices = std::optional<Integers>;

dtf::Picked picked(const std::vector<dtf::RowSource>& sources, const Indices& owners, const Indices& index) {
    const bool fits = owners ? index && owners->size() == index->size() : sources.size() == 1;
    if (!fits) throw nb::value_error("each row needs an owner, unless there is one source");
    return {sources, owners ? owners->data() : nullptr, index ? index->data() : nullptr,
            index ? index->size() : sources[0].rows};
}

// Sources of the values and the splits of arrays; `item` bytes are an item.
std::vector<dtf::RowSource> sources_of(const std::vector<Bytes>& values, const std::vector<Integers>& splits,
                                       std::size_t item) {
    if (item == 0) throw nb::value_error("an item has one or more bytes");
    if (!splits.empty() && splits.size() != values.size()) throw nb::value_error("each source needs splits, or none");
    std::vector<dtf::RowSource> sources;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::size_t items = values[i].size() / item;
        if (splits.empty()) {
            sources.push_back({values[i].data(), items, nullptr, items});
            continue;
        }
        if (splits[i].size() == 0) throw nb::value_error("splits must not be empty");
        sources.push_back({values[i].data(), items, splits[i].data(), splits[i].size() - 1});
    }
    return sources;
}

void take_splits(const std::vector<Integers>& splits, const Indices& owners, const Integers& index,
                 const OutputIntegers& out) {
    std::vector<dtf::RowSource> sources;
    for (const Integers& each : splits) {
        if (each.size() == 0) throw nb::value_error("splits must not be empty");
        sources.push_back({nullptr, dtf::most_values, each.data(), each.size() - 1});
    }
    const dtf::Picked rows = picked(sources, owners, index);
    if (out.size() != rows.count + 1) throw nb::value_error("out needs one more entry than rows");
    const bool done = binding::without_gil([&] { return dtf::take_splits(rows, out.data()); });
    if (!done) throw nb::value_error("splits must ascend, and index must name existing rows");
}

void take_rows(const std::vector<Bytes>& values, const std::vector<Integers>& splits, std::size_t item,
               const Indices& owners, const Integers& index, const OutputBytes& out) {
    const std::vector<dtf::RowSource> sources = sources_of(values, splits, item);
    const dtf::Picked rows = picked(sources, owners, index);
    const bool done = binding::without_gil([&] { return dtf::take_rows(rows, item, out.data(), out.size()); });
    if (!done) {
        throw nb::value_error(
            "splits must ascend within the values, index must name existing rows, and out must have their total size");
    }
}

void pad_rows(const std::vector<Bytes>& values, const std::vector<Integers>& splits, const Indices& owners,
              const Indices& index, const nb::bytes& filler, std::size_t length, const OutputBytes& out) {
    const std::size_t item = filler.size();
    const std::vector<dtf::RowSource> sources = sources_of(values, splits, item);
    const dtf::Picked rows = picked(sources, owners, index);
    if (length > dtf::most_values / item || rows.count > dtf::most_values || out.size() != rows.count * length * item) {
        throw nb::value_error("out must have `length` items for each row");
    }
    const auto* filling = reinterpret_cast<const std::uint8_t*>(filler.c_str());
    const bool done =
        binding::without_gil([&] { return dtf::pad_rows(rows, item, length, filling, out.data()); });
    if (!done) throw nb::value_error("splits must ascend within the values, and rows have at most `length` items");
}

void sort_rows(const Integers& indices, std::size_t axes, const Integers& splits, const OutputIntegers& order,
               const std::vector<Bytes>& arrays, const std::vector<OutputBytes>& out) {
    if (axes == 0 || splits.size() == 0 || indices.size() % axes != 0 || order.size() != indices.size() / axes) {
        throw nb::value_error("indices need `axes` integers for each item, order needs one, and splits must not be empty");
    }
    const std::size_t items = order.size();
    if (arrays.size() != out.size()) throw nb::value_error("each array needs an output");
    std::vector<dtf::Reordered> reordered;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        const std::size_t item = items == 0 ? 0 : arrays[i].size() / items;
        if (arrays[i].size() != item * items || out[i].size() != arrays[i].size()) {
            throw nb::value_error("arrays and their outputs must have equal bytes for each item");
        }
        reordered.push_back({arrays[i].data(), out[i].data(), item});
    }
    const bool done = binding::without_gil([&] {
        return dtf::sort_rows(indices.data(), items, axes, splits.data(), splits.size() - 1, order.data(), reordered);
    });
    if (!done) throw nb::value_error("splits must ascend from 0 to the number of items");
}

}  // namespace

void binding::add_rows(nb::module_& module) {
    keep_freed_memory();
    share_addresses();
    module.def("release_memory", &release_memory, "Return freed memory that the allocator keeps to the system.");
    module.def("take_splits", &take_splits, "splits"_a.noconvert(), "owners"_a.noconvert().none(),
               "index"_a.noconvert(), "out"_a.noconvert(),
               "Write the offsets between rows that are taken one after the other to `out`; see `take_rows`.");
    module.def("take_rows", &take_rows, "values"_a.noconvert(), "splits"_a.noconvert(), "item"_a,
               "owners"_a.noconvert().none(), "index"_a.noconvert(), "out"_a.noconvert(),
               "Copy row ``index[i]`` of source ``owners[i]`` one after the other to `out`.\n\n"
               "Rows consist of items of `item` bytes; without splits, of one item. A single source needs no owners.");
    module.def("pad_rows", &pad_rows, "values"_a.noconvert(), "splits"_a.noconvert(), "owners"_a.noconvert().none(),
               "index"_a.noconvert().none(), "filler"_a, "length"_a, "out"_a.noconvert(),
               "Copy each row to a slot of `length` items of `out` and fill the rest of the slot with `filler`.\n\n"
               "Rows are those of `take_rows`; all rows of the only source without an index.");
    module.def("sort_rows", &sort_rows, "indices"_a.noconvert(), "axes"_a, "splits"_a.noconvert(),
               "order"_a.noconvert(), "arrays"_a.noconvert(), "out"_a.noconvert(),
               "Write the order that sorts the items of each row by their indices to `order`; the sort is stable.\n\n"
               "Copy `arrays` of bytes of the items to `out` in this order.");
}
