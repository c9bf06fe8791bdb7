// Python bindings that make objects and strings of NumPy from flat arrays: bytes, an array for each row, StringDType.
#include "rows.hpp"

#include "binding.hpp"

// An extension that is built with a newer NumPy runs with NumPy 2.0 too.
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using binding::Bytes;
using binding::Integers;

namespace {

constexpr const char* bad_splits = "splits must ascend from 0 to at most len(values)";

std::size_t rows_of(const Integers& splits) { return splits.size() > 0 ? splits.size() - 1 : 0; }

// The caller cannot change a copy between two passes over it, of which the first allocates what the second writes.
std::vector<std::int64_t> copied(const Integers& splits) {
    return std::vector<std::int64_t>(splits.data(), splits.data() + splits.size());
}

// Throw the error that Python has set, or else one about the splits.
[[noreturn]] void refuse() {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    throw nb::value_error(bad_splits);
}

PyArrayObject* array_of(const nb::object& object) {
    if (!PyArray_CheckExact(object.ptr())) throw nb::type_error("expected a NumPy array");
    return reinterpret_cast<PyArrayObject*>(object.ptr());
}

// Array of objects, one for each row: a new one, or that of the caller.
class Objects {
public:
    Objects(std::size_t rows, const nb::object& out) {
        auto size = static_cast<npy_intp>(rows);
        if (out.is_none()) {
            array_ = nb::steal(PyArray_SimpleNew(1, &size, NPY_OBJECT));
            if (!array_.is_valid()) throw nb::python_error();
        } else {
            array_ = out;
        }
        PyArrayObject* array = array_of(array_);
        if (PyArray_TYPE(array) != NPY_OBJECT || PyArray_NDIM(array) != 1 || PyArray_DIM(array, 0) != size ||
            !PyArray_ISWRITEABLE(array) || !PyArray_IS_C_CONTIGUOUS(array)) {
            throw nb::value_error("out must be a writable contiguous array of objects with an item for each row");
        }
        slots_ = static_cast<PyObject**>(PyArray_DATA(array));
    }

    // Set a row to an object, whose reference is taken over; false if it is null.
    bool set(std::size_t row, PyObject* item) {
        if (item == nullptr) return false;
        // NumPy fills arrays of objects with None or null pointers.
        PyObject* before = std::exchange(slots_[row], item);
        Py_XDECREF(before);
        return true;
    }

    const nb::object& array() const { return array_; }

private:
    nb::object array_;
    PyObject** slots_;
};

// Objects whose content is copied without the GIL. They enter their array when they are complete: other threads may know
// the array, and without a GIL they may read or replace its items at any time.
class Incomplete {
public:
    explicit Incomplete(std::size_t rows) : items_(rows) {}
    Incomplete(const Incomplete&) = delete;
    Incomplete& operator=(const Incomplete&) = delete;
    ~Incomplete() {
        for (PyObject* item : items_) Py_XDECREF(item);
    }

    // Keep the object of a row, whose reference is taken over; false if it is null.
    bool add(std::size_t row, PyObject* item) {
        items_[row] = item;
        return item != nullptr;
    }

    PyObject* operator[](std::size_t row) const { return items_[row]; }

    void move_to(Objects& objects) {
        for (std::size_t row = 0; row < items_.size(); ++row) objects.set(row, std::exchange(items_[row], nullptr));
    }

private:
    std::vector<PyObject*> items_;
};

// Objects that keep the memory of freed ones mapped. The allocator of Python returns an arena, 1 MiB, to the system when
// the last object in it is freed, so that the objects of the next block cost a page fault for each page: more than half
// of their time, with the GIL held. One small object in each arena prevents this.
class Anchors {
public:
    // Count an object of `nbytes` bytes that was made, and keep another one of its size after each MiB. Lack of
    // memory for it is no error.
    void made(std::size_t nbytes) {
#if !defined(Py_GIL_DISABLED)  // that allocator has no arenas
        if (nbytes > largest_small || (unanchored_ += nbytes) < spacing) return;
        unanchored_ = 0;
        PyObject* anchor = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes - std::min(nbytes, header)));
        if (anchor == nullptr) PyErr_Clear();
        PyObject* before = std::exchange(anchors_[next_], anchor);
        next_ = (next_ + 1) % most;
        Py_XDECREF(before);
#else
        static_cast<void>(nbytes);
#endif
    }

    void release() {
        for (PyObject*& anchor : anchors_) Py_XDECREF(std::exchange(anchor, nullptr));
    }

    static constexpr std::size_t header = 33;  // bytes of an object besides its content

private:
    static constexpr std::size_t most = 128, spacing = std::size_t{1} << 20, largest_small = 512;

    PyObject* anchors_[most] = {};
    std::size_t next_ = 0, unanchored_ = 0;
};

Anchors anchors;  // used with the GIL only

// Mean size of rows from which their bytes are copied apart from the allocation of the objects, without the GIL. Below it,
// visiting the objects again takes longer.
constexpr std::size_t worth_releasing = 512;

bool is_worth_releasing(std::size_t nbytes, std::size_t rows) { return rows > 0 && nbytes / rows >= worth_releasing; }

// Make large bytes objects.
void copy_bytes(const Bytes& values, const std::vector<std::int64_t>& splits, std::size_t rows, Objects& objects) {
    Incomplete made(rows);
    const auto add = [&](std::size_t row, std::size_t begin, std::size_t end) {
        return made.add(row, PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(end - begin)));
    };
    if (!dtf::each_row(splits.data(), rows, values.size(), add)) refuse();
    // The bytes lie at the same place in each object.
    const std::ptrdiff_t content = PyBytes_AsString(made[0]) - reinterpret_cast<char*>(made[0]);
    binding::without_gil([&] {
        return dtf::each_row(splits.data(), rows, values.size(),
            [&](std::size_t row, std::size_t begin, std::size_t end) {
                // All empty objects are one.
                if (begin < end) {
                    std::memcpy(reinterpret_cast<char*>(made[row]) + content, values.data() + begin, end - begin);
                }
                return true;
            });
    });
    made.move_to(objects);
}

// Three times as fast as slicing one bytes object.
nb::object bytes_rows(const Bytes& values, const Integers& splits, const nb::object& out) {
    const std::size_t rows = rows_of(splits);
    Objects objects(rows, out);
    if (is_worth_releasing(values.size(), rows)) {
        copy_bytes(values, copied(splits), rows, objects);
        return objects.array();
    }
    const auto add = [&](std::size_t row, std::size_t begin, std::size_t end) {
        const char* data = reinterpret_cast<const char*>(values.data()) + begin;
        anchors.made(Anchors::header + end - begin);
        return objects.set(row, PyBytes_FromStringAndSize(data, static_cast<Py_ssize_t>(end - begin)));
    };
    if (!dtf::each_row(splits.data(), rows, values.size(), add)) refuse();
    return objects.array();
}

// Rows of an array, which are arrays.
class ArrayRows {
public:
    explicit ArrayRows(const nb::object& values) : values_(values), array_(array_of(values)) {
        if (PyArray_NDIM(array_) == 0) throw nb::value_error("values must have an axis of items");
        std::copy_n(PyArray_DIMS(array_), PyArray_NDIM(array_), shape_);
        const bool contiguous = PyArray_IS_C_CONTIGUOUS(array_);
        // Objects and strings have references.
        copyable_ = contiguous && (PyTypeNum_ISNUMBER(PyArray_TYPE(array_)) || PyArray_TYPE(array_) == NPY_BOOL);
        // NumPy computes the strides of such views faster than it checks given ones.
        strides_ = contiguous && PyArray_ISALIGNED(array_) ? nullptr : PyArray_STRIDES(array_);
    }

    std::size_t items() const { return static_cast<std::size_t>(PyArray_DIM(array_, 0)); }
    std::size_t nbytes() const { return static_cast<std::size_t>(PyArray_NBYTES(array_)); }
    // Return whether rows are copied by their bytes.
    bool copyable() const { return copyable_; }

    // Return a new array for a row, or null. Its content is copied by `copy`.
    PyObject* empty(std::size_t begin, std::size_t end) { return make(begin, end, nullptr, nullptr, 0); }

    void copy(PyObject* row, std::size_t begin, std::size_t end) const {
        if (begin == end) return;
        const std::size_t item = nbytes() / items();
        std::memcpy(PyArray_BYTES(reinterpret_cast<PyArrayObject*>(row)), PyArray_BYTES(array_) + begin * item,
                    (end - begin) * item);
    }

    // Return a view of a row, or null.
    PyObject* view(std::size_t begin, std::size_t end) {
        char* data = PyArray_BYTES(array_) + static_cast<npy_intp>(begin) * PyArray_STRIDE(array_, 0);
        const int flags = PyArray_FLAGS(array_) & (NPY_ARRAY_WRITEABLE | NPY_ARRAY_ALIGNED);
        nb::object view = nb::steal(make(begin, end, strides_, data, flags));
        if (!view.is_valid()) return nullptr;
        auto* of_values = reinterpret_cast<PyArrayObject*>(view.ptr());
        if (PyArray_SetBaseObject(of_values, nb::object(values_).release().ptr()) != 0) return nullptr;
        return view.release().ptr();
    }

private:
    PyObject* make(std::size_t begin, std::size_t end, npy_intp* strides, void* data, int flags) {
        shape_[0] = static_cast<npy_intp>(end - begin);
        PyArray_Descr* descr = PyArray_DESCR(array_);
        Py_INCREF(reinterpret_cast<PyObject*>(descr));  // The new array owns it.
        return PyArray_NewFromDescr(&PyArray_Type, descr, PyArray_NDIM(array_), shape_, strides, data, flags, nullptr);
    }

    const nb::object& values_;
    PyArrayObject* array_;
    npy_intp shape_[NPY_MAXDIMS];
    npy_intp* strides_;  // null: those of a contiguous array
    bool copyable_;
};

// Four times as fast as slicing in Python.
nb::object array_rows(const nb::object& values, const Integers& splits, bool copies, const nb::object& out) {
    ArrayRows arrays(values);
    const std::size_t rows = rows_of(splits);
    Objects objects(rows, out);
    const bool apart = copies && arrays.copyable() && is_worth_releasing(arrays.nbytes(), rows);
    const std::vector<std::int64_t> fixed = apart ? copied(splits) : std::vector<std::int64_t>();
    Incomplete made(apart ? rows : 0);
    // The limited API hides the fields of types.
    const nb::handle type(reinterpret_cast<PyObject*>(&PyArray_Type));
    const auto array_nbytes = nb::cast<std::size_t>(type.attr("__basicsize__"));
    nb::object empty;
    const auto make = [&](std::size_t begin, std::size_t end) -> PyObject* {
        if (!copies) return arrays.view(begin, end);
        if (arrays.copyable()) {
            PyObject* row = arrays.empty(begin, end);
            if (row != nullptr && !apart) arrays.copy(row, begin, end);
            return row;
        }
        const nb::object view = nb::steal(arrays.view(begin, end));
        return view.is_valid() ? PyArray_NewCopy(reinterpret_cast<PyArrayObject*>(view.ptr()), NPY_CORDER) : nullptr;
    };
    const auto add = [&](std::size_t row, std::size_t begin, std::size_t end) {
        PyObject* item = nullptr;
        if (begin == end && empty.is_valid()) {
            // Rows without values share one array: a record of a few MiB may hold millions of them.
            item = nb::object(empty).release().ptr();
        } else {
            item = make(begin, end);
            if (item != nullptr && begin == end) empty = nb::borrow(item);
        }
        anchors.made(array_nbytes);
        return apart ? made.add(row, item) : objects.set(row, item);
    };
    if (!dtf::each_row(apart ? fixed.data() : splits.data(), rows, arrays.items(), add)) refuse();
    if (!apart) return objects.array();
    binding::without_gil([&] {
        return dtf::each_row(fixed.data(), rows, arrays.items(),
            [&](std::size_t row, std::size_t begin, std::size_t end) {
                arrays.copy(made[row], begin, end);
                return true;
            });
    });
    made.move_to(objects);
    return objects.array();
}

// Raise the error of Python for text that is not UTF-8.
[[noreturn]] void refuse_text(const std::uint8_t* data, std::size_t size) {
    nb::steal(PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(data), static_cast<Py_ssize_t>(size), nullptr));
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    throw nb::value_error("another thread changed the values");
}

void pack_text(const Bytes& values, const Integers& splits, const nb::object& out) {
    PyArrayObject* array = array_of(out);
    const std::size_t rows = rows_of(splits);
    if (PyArray_TYPE(array) != NPY_VSTRING || PyArray_NDIM(array) != 1 || !PyArray_ISWRITEABLE(array) ||
        static_cast<std::size_t>(PyArray_DIM(array, 0)) != rows) {
        throw nb::value_error("out must be a writable array of StringDType with an item for each row");
    }
    auto* descr = reinterpret_cast<PyArray_StringDTypeObject*>(PyArray_DESCR(array));
    char* slots = PyArray_BYTES(array);
    const npy_intp stride = PyArray_STRIDE(array, 0);
    const std::uint8_t* invalid = nullptr;
    std::size_t invalid_size = 0;
    bool is_packed = true;
    // A thread that held the GIL while it waits for the strings could wait forever for one that has them.
    const bool done = binding::without_gil([&] {
        npy_string_allocator* strings = NpyString_acquire_allocator(descr);
        const bool fits = dtf::each_row(splits.data(), rows, values.size(),
            [&](std::size_t row, std::size_t begin, std::size_t end) {
                const std::uint8_t* data = values.data() + begin;
                if (!dtf::is_utf8(data, end - begin)) {
                    invalid = data;
                    invalid_size = end - begin;
                    return false;
                }
                auto* slot = reinterpret_cast<npy_packed_static_string*>(slots + static_cast<npy_intp>(row) * stride);
                is_packed = NpyString_pack(strings, slot, reinterpret_cast<const char*>(data), end - begin) == 0;
                return is_packed;
            });
        NpyString_release_allocator(strings);
        return fits;
    });
    if (invalid != nullptr) refuse_text(invalid, invalid_size);
    if (!is_packed) throw std::bad_alloc();
    if (!done) throw nb::value_error(bad_splits);
}

}  // namespace

void binding::release_anchors() { anchors.release(); }

void binding::add_objects(nb::module_& module) {
    // Sets NumPy's table of functions, which does not change later: imports of a module exclude each other.
    if (PyArray_ImportNumPyAPI() != 0) throw nb::python_error();
    module.def("bytes_rows", &bytes_rows, "values"_a.noconvert(), "splits"_a.noconvert(),
               "out"_a.none() = nb::none(),
               nb::sig("def bytes_rows(values: numpy.typing.NDArray[numpy.uint8], "
                       "splits: numpy.typing.NDArray[numpy.int64], "
                       "out: numpy.typing.NDArray[numpy.object_] | None = None) -> "
                       "numpy.typing.NDArray[numpy.object_]"),
               "Return ``values[splits[i]:splits[i + 1]]`` as an array of bytes objects: `out`, if it is given.");
    module.def("array_rows", &array_rows, "values"_a, "splits"_a.noconvert(), "copies"_a,
               "out"_a.none() = nb::none(),
               nb::sig("def array_rows(values: numpy.typing.NDArray[typing.Any], "
                       "splits: numpy.typing.NDArray[numpy.int64], copies: bool, "
                       "out: numpy.typing.NDArray[numpy.object_] | None = None) -> "
                       "numpy.typing.NDArray[numpy.object_]"),
               "Return ``values[splits[i]:splits[i + 1]]`` as an array of arrays: views of the values, or copies.\n\n"
               "The array is `out`, if it is given.");
    module.def("pack_text", &pack_text, "values"_a.noconvert(), "splits"_a.noconvert(), "out"_a,
               nb::sig("def pack_text(values: numpy.typing.NDArray[numpy.uint8], "
                       "splits: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[typing.Any]) -> None"),
               "Copy ``values[splits[i]:splits[i + 1]]``, which are UTF-8, to the strings of `out`.");
}
