// Shared by the Python bindings: array types, argument checks, the GIL, and exclusive use of an object.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "buffer.hpp"

namespace binding {

namespace nb = nanobind;

// One-dimensional contiguous NumPy arrays. Arguments are bound with noconvert(): a conversion would copy a whole block,
// or discard what the function writes.
template <class T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Bytes = Array<const std::uint8_t>;
using Integers = Array<const std::int64_t>;
using OutputBytes = Array<std::uint8_t>;
using OutputIntegers = Array<std::int64_t>;

inline void check_range(const Bytes& buffer, std::size_t begin, std::size_t end) {
    if (begin > end || end > buffer.size()) {
        throw nb::index_error("the range does not lie within the buffer: expected 0 <= begin <= end <= len(buffer)");
    }
}

template <class Work>
auto without_gil(Work work) {
    nb::gil_scoped_release released;
    return work();
}

// Marks an object as in use. Methods release the GIL, and free-threaded Python has none, so another thread can enter
// an object that is not built for two: it gets an error instead.
class ExclusiveUse {
public:
    explicit ExclusiveUse(std::atomic_flag& busy) : busy_(busy) {
        if (busy_.test_and_set(std::memory_order_acquire)) {
            throw std::runtime_error("this object is in use by another thread: create one per thread");
        }
    }
    ExclusiveUse(const ExclusiveUse&) = delete;
    ExclusiveUse& operator=(const ExclusiveUse&) = delete;
    ~ExclusiveUse() { busy_.clear(std::memory_order_release); }

private:
    std::atomic_flag& busy_;
};

// Arrays of one column; None for those that its layout lacks.
struct ColumnOutput {
    nb::object values, value_splits, step_splits, row_splits, shapes;
};

// Return the values of a buffer as an array that owns its memory.
template <class T>
nb::object array_of(dtf::Buffer& buffer) {
    const std::size_t size = buffer.size() / sizeof(T);
    auto memory = std::make_unique<dtf::Memory>(buffer.release());
    std::uint8_t* data = memory->data();
    nb::capsule owner(memory.get(), [](void* pointer) noexcept { delete static_cast<dtf::Memory*>(pointer); });
    memory.release();  // The capsule owns it.
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner));
}

inline nb::object splits_of(bool exists, dtf::Buffer& buffer) {
    return exists ? array_of<std::int64_t>(buffer) : nb::none();
}

inline std::string string_of(const nb::bytes& bytes) { return std::string(bytes.c_str(), bytes.size()); }

// Each file of bindings adds its part to the module.
void add_decoder(nb::module_& module);  // decoder.cpp
void add_encoder(nb::module_& module);  // encoder.cpp
void add_messages(nb::module_& module);  // message.cpp
void add_rows(nb::module_& module);     // rows.cpp
void add_objects(nb::module_& module);  // objects.cpp
void add_resync(nb::module_& module);   // resync.cpp
void add_pixels(nb::module_& module);   // pixels.cpp

}  // namespace binding
