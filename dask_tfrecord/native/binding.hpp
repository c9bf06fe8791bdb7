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
#include <utility>

#include "buffer.hpp"
#include "encode.hpp"
#include "framing.hpp"

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

// A decoder and the arrays that it writes to. The order of calls: set output buffers, feed records, take the outputs.
template <class Core>
class DecoderBinding {
public:
    DecoderBinding(const DecoderBinding&) = delete;
    DecoderBinding& operator=(const DecoderBinding&) = delete;

    void preallocate(double factor) {
        const ExclusiveUse use(busy_);
        decoder_.preallocate(factor);
    }

    auto problem() {
        const ExclusiveUse use(busy_);
        return decoder_.problem();
    }

protected:
    template <class... Args>
    explicit DecoderBinding(const char* name, Args&&... args) : decoder_(std::forward<Args>(args)...), name_(name) {}

    // Decode `buffer[begin:end]` by `work`, which gets the data and their size.
    template <class Work>
    dtf::Walk decode(const Bytes& buffer, std::size_t begin, std::size_t end, Work work) {
        const ExclusiveUse use(busy_);
        check_range(buffer, begin, end);
        begin_feed();
        return without_gil([&] { return work(buffer.data() + begin, end - begin); });
    }

    void begin_feed() {
        if (taken_) throw nb::value_error((std::string("an output was already taken: create another ") + name_).c_str());
        fed_ = true;
    }

    auto& writable(std::size_t index) {
        auto& column = at(index);
        if (fed_) throw nb::value_error("output buffers must be set before records are fed");
        return column;
    }

    auto& at(std::size_t index) {
        if (index >= decoder_.columns().size()) throw nb::index_error("column index out of range");
        return decoder_.columns()[index];
    }

    Core decoder_;
    nb::list outputs_;    // keeps the arrays alive
    bool taken_ = false;  // an output
    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;

private:
    const char* name_;
    bool fed_ = false;
};

// An encoder of rows and the arrays that it views; `make` builds the encoder, and appends the arrays to a list.
template <class Core>
class EncoderBinding {
public:
    EncoderBinding(const EncoderBinding&) = delete;
    EncoderBinding& operator=(const EncoderBinding&) = delete;

    dtf::Encoded encode(std::size_t first, const OutputBytes& out) {
        const ExclusiveUse use(busy_);
        if (first > rows_) throw nb::index_error("first exceeds the number of rows");
        return without_gil([&] { return encoder_.encode(first, out.data(), out.size()); });
    }

protected:
    template <class Make>
    EncoderBinding(std::size_t rows, Make make) : encoder_(make(kept_)), rows_(rows) {}

private:
    nb::list kept_;  // keeps the arrays alive
    Core encoder_;
    std::size_t rows_;
    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
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
