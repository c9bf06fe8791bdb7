// Python bindings that make objects and strings of NumPy from flat arrays: bytes, an array for each row, StringDType.
#include "rows.hpp"

#include "binding.hpp"

// An extension that is built with a newer NumPy runs with NumPy 2.0 too.
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

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

    PyObject* operator[](std::size_t row) const { return slots_[row]; }
    const nb::object& array() const { return array_; }

private:
    nb::object array_;
    PyObject** slots_;
};

// Mean size of rows from which their bytes are copied apart from the allocation of the objects, without the GIL. Below it,
// visiting the objects again takes longer.
constexpr std::size_t worth_releasing = 512;

bool is_worth_releasing(std::size_t nbytes, std::size_t rows) { return rows > 0 && nbytes / rows >= worth_releasing; }

// Three times as fast as slicing one bytes object.
nb::object bytes_rows(const Bytes& values, const Integers& splits, const nb::object& out) {
    const std::size_t rows = rows_of(splits);
    Objects objects(rows, out);
    const bool apart = is_worth_releasing(values.size(), rows);
    const auto add = [&](std::size_t row, std::size_t begin, std::size_t end) {
        const char* data = apart ? nullptr : reinterpret_cast<const char*>(values.data()) + begin;
        return objects.set(row, PyBytes_FromStringAndSize(data, static_cast<Py_ssize_t>(end - begin)));
    };
    if (!dtf::each_row(splits.data(), rows, values.size(), add)) refuse();
    if (!apart) return objects.array();
    // No other thread knows the objects yet. Their bytes lie at the same place in each of them.
    std::vector<PyObject*> made(rows);
    for (std::size_t row = 0; row < rows; ++row) made[row] = objects[row];
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
    return objects.array();
}

// Four times as fast as slicing in Python.
nb::object array_rows(const nb::object& values, const Integers& splits, bool copies, const nb::object& out) {
    PyArrayObject* array = array_of(values);
    const int axes = PyArray_NDIM(array);
    if (axes == 0) throw nb::value_error("values must have an axis of items");
    const std::size_t rows = rows_of(splits);
    Objects objects(rows, out);
    npy_intp shape[NPY_MAXDIMS];
    std::copy_n(PyArray_DIMS(array), axes, shape);
    const npy_intp stride = PyArray_STRIDE(array, 0);
    const int flags = PyArray_FLAGS(array) & NPY_ARRAY_WRITEABLE;
    // Objects and strings have references.
    const bool plain = PyTypeNum_ISNUMBER(PyArray_TYPE(array)) || PyArray_TYPE(array) == NPY_BOOL;
    const bool apart = copies && plain && PyArray_IS_C_CONTIGUOUS(array) &&
                       is_worth_releasing(static_cast<std::size_t>(PyArray_NBYTES(array)), rows);
    nb::object empty;
    std::vector<std::uint8_t*> made(apart ? rows : 0);
    const auto add = [&](std::size_t row, std::size_t begin, std::size_t end) {
        // Rows without values share one array: a record of a few MiB may hold millions of them.
        if (begin == end && empty.is_valid()) return objects.set(row, nb::object(empty).release().ptr());
        shape[0] = static_cast<npy_intp>(end - begin);
        PyArray_Descr* descr = PyArray_DESCR(array);
        Py_INCREF(reinterpret_cast<PyObject*>(descr));  // The new array owns it.
        PyObject* item = nullptr;
        if (apart) {
            item = PyArray_NewFromDescr(&PyArray_Type, descr, axes, shape, nullptr, nullptr, 0, nullptr);
            if (item == nullptr) return false;
            made[row] = reinterpret_cast<std::uint8_t*>(PyArray_BYTES(reinterpret_cast<PyArrayObject*>(item)));
        } else {
            void* data = PyArray_BYTES(array) + static_cast<npy_intp>(begin) * stride;
            nb::object view = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, axes, shape, PyArray_STRIDES(array),
                                                             data, flags, nullptr));
            if (!view.is_valid()) return false;
            auto* base = reinterpret_cast<PyArrayObject*>(view.ptr());
            if (PyArray_SetBaseObject(base, nb::object(values).release().ptr()) != 0) return false;
            item = copies ? PyArray_NewCopy(base, NPY_CORDER) : view.release().ptr();
            if (item == nullptr) return false;
        }
        if (begin == end) empty = nb::borrow(item);
        return objects.set(row, item);
    };
    const auto items = static_cast<std::size_t>(PyArray_DIM(array, 0));
    if (!dtf::each_row(splits.data(), rows, items, add)) refuse();
    if (!apart) return objects.array();
    const auto* data = reinterpret_cast<const std::uint8_t*>(PyArray_BYTES(array));
    const std::size_t item = items > 0 ? static_cast<std::size_t>(PyArray_NBYTES(array)) / items : 0;
    binding::without_gil([&] {
        return dtf::each_row(splits.data(), rows, items, [&](std::size_t row, std::size_t begin, std::size_t end) {
            if (begin < end) std::memcpy(made[row], data + begin * item, (end - begin) * item);
            return true;
        });
    });
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

void binding::add_objects(nb::module_& module) {
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
