// Shared by the Python bindings: array types, argument checks, the GIL, and exclusive use of an object.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

#include "buffer.hpp"
#include "encode.hpp"
#include "framing.hpp"
#include "windows.hpp"

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

// Releases the GIL. If the interpreter has ended meanwhile, CPython before 3.14 ends a daemon thread that takes the GIL
// again by pthread_exit, which glibc implements as an exception through frames that throw none: the process would abort.
// Such a thread sleeps instead, until the process ends.
class GilReleased {
public:
    GilReleased() : state_(PyEval_SaveThread()) {}
    GilReleased(const GilReleased&) = delete;
    GilReleased& operator=(const GilReleased&) = delete;
    ~GilReleased() {
#if defined(__GLIBCXX__)
        try {
            PyEval_RestoreThread(state_);
        } catch (abi::__forced_unwind&) {
            // Such an exception may not be dropped, so this block never ends.
            for (;;) std::this_thread::sleep_for(std::chrono::hours(24));
        }
#else
        PyEval_RestoreThread(state_);
#endif
    }

private:
    PyThreadState* state_;
};

template <class Work>
auto without_gil(Work work) {
    GilReleased released;
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

// What a decoder reads itself: a file by its descriptor, or bytes in memory.
struct Origin {
    int file = -1;
    std::optional<Bytes> memory;
    dtf::Reach reach;

    std::ptrdiff_t read(std::uint8_t* out, std::size_t size, std::uint64_t position) const {
        if (!memory) return dtf::read_at(file, out, size, position);
        std::memcpy(out, memory->data() + position, size);
        return static_cast<std::ptrdiff_t>(size);
    }
};

// What is known of the memory that a decoder will need, until the first records determine it.
struct Expected {
    std::uint64_t nbytes = 0;  // stored bytes of all records; 0 if memory is allocated
    std::int64_t rows = -1;    // number of all records, if it is known

    // Return how many times the values of records of `consumed` bytes make all values.
    double factor(std::uint64_t records, std::uint64_t consumed) const {
        const double times = static_cast<double>(nbytes) / static_cast<double>(consumed);
        if (rows < 0) return times;
        return std::min(times, static_cast<double>(rows) / static_cast<double>(records));
    }
};

// Records that a decoder passed, and how many of them it decoded.
struct Fed {
    dtf::Walk walk;
    std::uint64_t decoded = 0;
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

    void set_output(std::size_t index, const OutputBytes& memory) {
        const ExclusiveUse use(busy_);
        auto& column = writable(index, memory);
        if (!decoder_.is_dense(column)) {
            throw nb::value_error("set_output needs a column whose rows have one size: numbers, or raw bytes");
        }
        const std::size_t row = decoder_.row_size(column);
        if (row != 0 && memory.size() % row != 0) {
            throw nb::value_error("the size of the output buffer must be a multiple of the row size");
        }
        decoder_.values(column) = dtf::Buffer(memory.data(), memory.size());
        outputs_.append(memory);
    }

    void offer_output(std::size_t index, const OutputBytes& memory) {
        const ExclusiveUse use(busy_);
        auto& column = writable(index, memory);
        if (!decoder_.is_ragged(column)) {
            throw nb::value_error("offer_output needs a column that keeps values of rows of different sizes");
        }
        decoder_.values(column) = dtf::Buffer::offered(memory.data(), memory.size());
        outputs_.append(memory);
    }

    void set_memory_limit(std::size_t nbytes) {
        const ExclusiveUse use(busy_);
        decoder_.set_memory_limit(nbytes);
    }

    dtf::Walk feed(const Bytes& buffer, std::size_t begin, std::size_t end, std::int64_t limit) {
        return decode(buffer, begin, end, [&](const std::uint8_t* data, std::size_t size) {
            return decoder_.feed(data, size, limit < 0 ? UINT64_MAX : static_cast<std::uint64_t>(limit));
        });
    }

    using OnWindow = nb::typed<nb::tuple, dtf::Walk, std::size_t, std::size_t, std::uint64_t>;
    using OnSelected = nb::typed<nb::tuple, dtf::Walk, std::size_t, std::size_t, std::uint64_t, std::size_t>;

    OnWindow feed_on(const Origin& origin, const OutputBytes& buffer, std::size_t begin, std::size_t end,
                     std::uint64_t position, std::int64_t limit, std::uint64_t offset, std::optional<std::uint64_t> last,
                     std::uint64_t nbytes, std::int64_t rows) {
        dtf::View view{begin, end, position};
        const dtf::Walk walk = decode_on(
            origin, buffer, view, limit, offset, last, {nbytes, rows},
            [&](const std::uint8_t* data, std::size_t size, std::uint64_t most, std::uint64_t) {
                const dtf::Walk found = decoder_.feed(data, size, most);
                return Fed{found, found.records};
            });
        return nb::make_tuple(walk, view.begin, view.end, view.position);
    }

    OnSelected feed_selected_on(const Origin& origin, const OutputBytes& buffer, std::size_t begin, std::size_t end,
                                std::uint64_t position, std::uint64_t first, const Integers& selected,
                                std::uint64_t offset, std::uint64_t nbytes, std::int64_t rows,
                                const std::optional<OutputIntegers>& found_ends) {
        dtf::View view{begin, end, position};
        dtf::Ends ends;
        if (found_ends) ends = dtf::Ends(found_ends->data(), found_ends->size());
        std::size_t done = 0;
        const dtf::Walk walk = decode_on(
            origin, buffer, view, -1, offset, std::nullopt, {nbytes, rows},
            [&](const std::uint8_t* data, std::size_t size, std::uint64_t, std::uint64_t at) {
                ends.begin(offset + at);
                const std::size_t before = done;
                const dtf::Walk found = decoder_.feed_selected(data, size, first, selected.data() + done,
                                                               selected.size() - done, &ends);
                first += found.records;
                while (done < selected.size() && static_cast<std::uint64_t>(selected.data()[done]) < first) ++done;
                return Fed{found, done - before};
            });
        return nb::make_tuple(walk, view.begin, view.end, view.position, done);
    }

    dtf::Walk feed_selected(const Bytes& buffer, std::size_t begin, std::size_t end, std::uint64_t first,
                            const Integers& selected) {
        return decode(buffer, begin, end, [&](const std::uint8_t* data, std::size_t size) {
            return decoder_.feed_selected(data, size, first, selected.data(), selected.size());
        });
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

    // Decode the records in view in `buffer[begin:end]` and those that follow in the origin by `work`, which gets data,
    // their size, the most records and their distance from the first byte, and returns `Fed`. `offset` is that of
    // `buffer[begin]`.
    template <class Work>
    dtf::Walk decode_on(const Origin& origin, const OutputBytes& buffer, dtf::View& view, std::int64_t limit,
                        std::uint64_t offset, std::optional<std::uint64_t> last, Expected expected, Work work) {
        const ExclusiveUse use(busy_);
        if (view.begin > view.end || view.end > buffer.size()) {
            throw nb::index_error("expected 0 <= begin <= end <= len(buffer)");
        }
        if (last && *last < offset) throw nb::value_error("last must be at or after offset");
        if (offset > dtf::absurd_length) throw nb::value_error("offset exceeds 2**62");
        if (origin.memory && view.position > origin.memory->size()) {
            throw nb::index_error("position lies beyond the memory");
        }
        begin_feed();
        return without_gil([&] {
            const auto read = [&](std::uint8_t* out, std::size_t size, std::uint64_t at) {
                return origin.read(out, size, at);
            };
            dtf::Windows windows(buffer.data(), buffer.size(), view, origin.reach, read);
            const std::uint64_t most = limit < 0 ? UINT64_MAX : static_cast<std::uint64_t>(limit);
            return windows.each(most, last ? *last - offset : UINT64_MAX, [&](const std::uint8_t* data, std::size_t size,
                                                                              std::uint64_t records, std::uint64_t at) {
                const Fed fed = work(data, size, records, at);
                if (fed.decoded > 0 && expected.nbytes > 0) {
                    decoder_.preallocate(expected.factor(fed.decoded, fed.walk.consumed) * 1.05);
                    expected.nbytes = 0;
                }
                return fed.walk;
            });
        });
    }

    void begin_feed() {
        if (taken_) throw nb::value_error((std::string("an output was already taken: create another ") + name_).c_str());
        fed_ = true;
    }

    // The column whose output is taken.
    auto& taken(std::size_t index) {
        auto& column = at(index);
        taken_ = true;
        if (!taken_columns_.insert(index).second) {
            throw nb::value_error("the output of a column can be taken only once");
        }
        return column;
    }

    auto& at(std::size_t index) {
        if (index >= decoder_.columns().size()) throw nb::index_error("column index out of range");
        return decoder_.columns()[index];
    }

    Core decoder_;
    bool taken_ = false;  // an output
    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;

private:
    // The column that `memory` becomes the output buffer of.
    auto& writable(std::size_t index, const OutputBytes& memory) {
        auto& column = at(index);
        if (fed_) throw nb::value_error("output buffers must be set before records are fed");
        if (decoder_.is_aligned(column) && reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(std::int64_t) != 0) {
            throw nb::value_error("the output buffer of int64 values must be aligned to 8 bytes");
        }
        return column;
    }

    const char* name_;
    nb::list outputs_;  // keeps the arrays alive
    std::unordered_set<std::size_t> taken_columns_;
    bool fed_ = false;
};

// Add the methods that feed records to a decoder.
template <class Decoder>
void add_feeds(nb::class_<Decoder>& decoder) {
    using namespace nb::literals;
    decoder
        .def("feed", &Decoder::feed, "buffer"_a.noconvert(), "begin"_a, "end"_a, "limit"_a,
             "Decode the records in ``buffer[begin:end]``, at most `limit` of them if it is not negative.")
        .def("feed_on", &Decoder::feed_on, "origin"_a, "buffer"_a.noconvert(), "begin"_a, "end"_a, "position"_a,
             "limit"_a, "offset"_a, "last"_a.none(), "nbytes"_a = 0, "rows"_a = -1,
             "Decode the records in ``buffer[begin:end]`` and those that follow in the origin from `position` on.\n\n"
             "Returns a Walk, and begin, end and position of what is in view then. The last record begins at byte `last`\n"
             "of the stream at most. `nbytes` and `rows` are those of all records; 0 if memory is allocated for them.")
        .def("feed_selected_on", &Decoder::feed_selected_on, "origin"_a, "buffer"_a.noconvert(), "begin"_a, "end"_a,
             "position"_a, "first"_a, "selected"_a.noconvert(), "offset"_a, "nbytes"_a = 0, "rows"_a = -1,
             "ends"_a.noconvert().none() = nb::none(),
             "Decode the records with the ascending numbers `selected`, in view and in the origin; others are skipped.\n\n"
             "Returns the results of `feed_on`, and the number of decoded records. The first record in view has the number\n"
             "`first`. The bytes of the stream up to the end of each record from there on are written to `ends`, up to a\n"
             "damaged header. If a record ends beyond the origin, so does the position.")
        .def("feed_selected", &Decoder::feed_selected, "buffer"_a.noconvert(), "begin"_a, "end"_a, "first"_a,
             "selected"_a.noconvert(),
             "Decode the records with the ascending numbers `selected`; `first` is the number of the first record.\n\n"
             "Other records are skipped by their headers.");
}

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

// Return the values of a column, or None if they are in an output buffer of the caller, or only counted.
inline nb::object kept_values(dtf::Buffer& values) {
    return values.borrowed() || !values.keeps() ? nb::none() : array_of<std::uint8_t>(values);
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
void release_anchors();                 // objects.cpp
void add_resync(nb::module_& module);   // resync.cpp
void add_pixels(nb::module_& module);   // pixels.cpp

}  // namespace binding
