// Reader of TensorProto messages, as tf.io.serialize_tensor writes them, to the buffers of a column.
//
// Messages are parsed like protobuf and interpreted like tf.io.parse_tensor. Where TensorFlow discards or invents
// values without an error, this reader reports one:
// - more values than elements (TensorFlow discards the rest), content of a tensor without elements (discarded);
// - half of a complex number (discarded), an integer that its dtype cannot hold (TensorFlow wraps it);
// - values only in the list of another dtype (TensorFlow reads zeros), a shape of unknown rank (read as known);
// - a single value repeated to more than `most_repeated` bytes, unless the shape is specified.
// Messages in fields of dtypes that are not supported (resources, variants) are not validated.
#pragma once

#include <string>
#include <vector>

#include "buffer.hpp"
#include "lists.hpp"
#include "rows.hpp"

namespace dtf {

enum class TensorFault : int {
    none = 0,
    malformed = 1,  // not a valid protobuf message
    dtype = 2,      // a tensor of another dtype
    shape = 3,      // another shape, or one that an array cannot have
    size = 4,       // more or fewer values than elements
    value = 5,      // a bool that is neither 0 nor 1, or an integer that the dtype cannot hold
    full = 6,       // the output buffer is full
};

// Numbers of the supported dtypes in tensorflow/core/framework/types.proto.
enum class DataType : int {
    float32 = 1, float64 = 2, int32 = 3, uint8 = 4, int16 = 5, int8 = 6, string = 7, complex64 = 8, int64 = 9,
    boolean = 10, bfloat16 = 14, uint16 = 17, complex128 = 18, float16 = 19, uint32 = 22, uint64 = 23,
};

// Expected tensor.
struct TensorSpec {
    int dtype = 0;                    // a DataType
    std::size_t item = 0;             // bytes per element, 0 for strings
    std::vector<std::int64_t> shape;  // -1 is any size
};

// Difference between a tensor and its specification.
struct TensorProblem {
    TensorFault fault = TensorFault::none;
    int dtype = 0;     // number of the dtype of the tensor; 0 if the message lacks one
    std::string text;  // description of the difference, if it is not the dtype: "shape (3, 2)"
};

// Limit for repeating a single value where the shape comes from the message: eight bytes can claim any size.
constexpr std::size_t most_repeated = std::size_t{1} << 28;

// One TensorProto. `scan` parses the message once, `fits` compares it with the specification, `read` copies it.
class Tensor {
public:
    explicit Tensor(const TensorSpec& spec) : spec_(spec), list_(list_of(spec.dtype)) {}

    // False if the message is malformed.
    bool scan(const Cursor message) {
        message_ = message;
        for (Cursor rest = message; !rest.empty();) {
            std::uint32_t tag;
            std::uint64_t value;
            if (!rest.tag(tag)) return false;
            if (tag == tag_of(field_dtype, WireType::varint)) {
                if (!rest.varint(value)) return false;
                dtype_ = static_cast<std::int32_t>(value);
            } else if (tag == length_delimited(field_shape)) {
                Cursor shape(rest.here(), 0);
                if (!rest.delimited(shape) || !scan_shape(shape)) return false;
            } else if (tag == length_delimited(field_content)) {
                if (!rest.delimited(content_)) return false;
            } else {
                const bool own = tag >> 3 == list_;
                const auto visit = [this, own](const std::int64_t* run, std::size_t n) {
                    if (own) {
                        count(run, n);
                    } else {
                        foreign_ = true;
                    }
                };
                if (!visit_values(rest, tag, listed(tag >> 3), in_tensor, visit)) return false;
            }
        }
        return true;
    }

    bool fits(TensorProblem& problem) {
        problem.dtype = dtype_;
        problem.text.clear();
        if (dtype_ != spec_.dtype || list_ == 0) return fail(problem, TensorFault::dtype, {});
        if (!shape_fits()) return fail(problem, TensorFault::shape, shape_text());
        if (!content_.empty()) return spec_.item == 0 ? strings_fit(problem) : content_fits(problem);
        return list_fits(problem);
    }

    // Bytes of a tensor that fits; for strings, including their splits.
    std::size_t nbytes() const {
        return spec_.item == 0 ? string_bytes_ + elements_ * sizeof(std::int64_t) : elements_ * spec_.item;
    }

    // Copy a tensor that fits; false if the buffer is full.
    bool read(Buffer& values, Buffer* splits) const {
        if (spec_.item == 0) {
            if (splits == nullptr || !splits->reserve(elements_ * sizeof(std::int64_t))) return false;
            if (!values.reserve(string_bytes_)) return false;
            if (content_.empty()) {
                read_string_list(values, *splits);
            } else {
                read_string_content(values, *splits);
            }
            return true;
        }
        const std::size_t size = elements_ * spec_.item;
        // append to a count-only buffer needs no memory
        if (!content_.empty() || !values.keeps()) return values.append(content_.here(), size);
        std::uint8_t* place = values.grow(size);
        if (place == nullptr) return false;
        if (size == 0) return true;
        if (count_ == 0) {
            std::memset(place, 0, size);
        } else {
            read_list(place);
            repeat(place, count_ / parts() * spec_.item, size);
        }
        return true;
    }

    bool read_shape(Buffer& shapes) const {
        std::uint8_t* place = shapes.grow(rank_ * sizeof(std::int64_t));
        if (place == nullptr) return false;
        if (rank_ > 0) std::memcpy(place, sizes_, rank_ * sizeof(std::int64_t));
        return true;
    }

private:
    enum Level : std::size_t { in_tensor, in_shape, in_dim };

    static constexpr std::uint32_t field_dtype = 1, field_shape = 2, field_content = 4;
    static constexpr std::size_t most_dims = 64;  // limit of NumPy

    static std::uint32_t list_of(int dtype) {
        switch (static_cast<DataType>(dtype)) {
            case DataType::float16: case DataType::bfloat16: return 13;
            case DataType::float32: return 5;
            case DataType::float64: return 6;
            case DataType::int32: case DataType::int16: case DataType::int8:
            case DataType::uint16: case DataType::uint8: return 7;
            case DataType::string: return 8;
            case DataType::complex64: return 9;
            case DataType::int64: return 10;
            case DataType::boolean: return 11;
            case DataType::complex128: return 12;
            case DataType::uint32: return 16;
            case DataType::uint64: return 17;
        }
        return 0;
    }

    // Wire type of the values that a field lists; none if it is no list.
    static std::optional<WireType> listed(std::uint32_t field) {
        switch (field) {
            case 5: case 9: return WireType::fixed32;
            case 6: case 12: return WireType::fixed64;
            case 7: case 10: case 11: case 13: case 16: case 17: return WireType::varint;
            case 8: return WireType::delimited;
            default: return std::nullopt;
        }
    }

    // message TensorShapeProto { message Dim { int64 size = 1; string name = 2; } repeated Dim dim = 2;
    //                            bool unknown_rank = 3; }
    bool scan_shape(Cursor shape) {
        while (!shape.empty()) {
            std::uint32_t tag;
            std::uint64_t value;
            if (!shape.tag(tag)) return false;
            if (tag == length_delimited(2)) {
                Cursor dim(shape.here(), 0);
                if (!shape.delimited(dim) || !scan_dim(dim)) return false;
            } else if (tag == tag_of(3, WireType::varint)) {
                if (!shape.varint(value)) return false;
                unknown_rank_ = value != 0;
            } else if (!shape.skip(tag, in_shape)) {
                return false;
            }
        }
        return true;
    }

    bool scan_dim(Cursor dim) {
        std::int64_t size = 0;
        while (!dim.empty()) {
            std::uint32_t tag;
            std::uint64_t value;
            Cursor name(dim.here(), 0);
            if (!dim.tag(tag)) return false;
            if (tag == tag_of(1, WireType::varint)) {
                if (!dim.varint(value)) return false;
                size = static_cast<std::int64_t>(value);
            } else if (tag == length_delimited(2)) {
                if (!dim.delimited(name) || !is_utf8(name.here(), name.left())) return false;
            } else if (!dim.skip(tag, in_dim)) {
                return false;
            }
        }
        if (rank_ < most_dims) sizes_[rank_] = size;
        ++rank_;
        return true;
    }

    // Values in the list of the specified dtype.
    void count(const std::int64_t* run, std::size_t n) {
        count_ += n;
        if (spec_.item == 0) {
            last_bytes_ = static_cast<std::size_t>(*run);
            listed_bytes_ += last_bytes_;
        } else if (list_ == 7 || list_ == 13) {
            for (std::size_t i = 0; i < n && !outside_; ++i) {
                outlier_ = static_cast<std::int32_t>(run[i]);
                outside_ = !holds(outlier_);
            }
        }
    }

    // int_val and half_val are lists of int32, for every dtype. Halves are stored as bits, which some writers treat as
    // signed.
    bool holds(std::int32_t value) const {
        switch (static_cast<DataType>(spec_.dtype)) {
            case DataType::int8: return value >= INT8_MIN && value <= INT8_MAX;
            case DataType::uint8: return value >= 0 && value <= UINT8_MAX;
            case DataType::int16: return value >= INT16_MIN && value <= INT16_MAX;
            case DataType::uint16: return value >= 0 && value <= UINT16_MAX;
            case DataType::float16: case DataType::bfloat16: return value >= INT16_MIN && value <= UINT16_MAX;
            default: return true;
        }
    }

    // Return whether the shape is the specified one, and one that an array can have.
    bool shape_fits() {
        if (unknown_rank_ || rank_ != spec_.shape.size() || rank_ > most_dims) return false;
        const std::size_t each = spec_.item == 0 ? sizeof(std::int64_t) : spec_.item;  // strings have splits
        std::uint64_t product = each;
        bool none = false;
        for (std::size_t i = 0; i < rank_; ++i) {
            const std::int64_t wanted = spec_.shape[i];
            if (sizes_[i] < 0 || (wanted != -1 && wanted != sizes_[i])) return false;
            open_ = open_ || wanted == -1;
            none = none || sizes_[i] == 0;
            if (sizes_[i] == 0) continue;
            const auto size = static_cast<std::uint64_t>(sizes_[i]);
            // NumPy cannot create this array, even without elements
            if (product > static_cast<std::uint64_t>(INT64_MAX) / size) return false;
            product *= size;
        }
        elements_ = none ? 0 : static_cast<std::size_t>(product) / each;
        return true;
    }

    bool content_fits(TensorProblem& problem) const {
        const std::size_t size = elements_ * spec_.item;
        if (content_.left() != size) {
            return fail(problem, TensorFault::size, std::to_string(content_.left()) + " bytes of content where " +
                        shape_text() + " of " + std::to_string(spec_.item) + " bytes takes " + std::to_string(size));
        }
        if (spec_.dtype != static_cast<int>(DataType::boolean)) return true;
        for (Cursor bytes = content_;;) {
            while (bytes.left() >= 8 && (load<std::uint64_t>(bytes.here()) & 0xfefefefefefefefeu) == 0) bytes.take(8);
            const std::uint8_t* byte = bytes.take(1);
            if (byte == nullptr) return true;
            if (*byte > 1) return fail(problem, TensorFault::value, "the bool " + std::to_string(*byte));
        }
    }

    bool list_fits(TensorProblem& problem) {
        const std::size_t given = count_ / parts();
        if (count_ % parts() != 0) {
            return fail(problem, TensorFault::size, std::to_string(count_) + " halves of complex numbers");
        }
        if (given > elements_) {
            return fail(problem, TensorFault::size, std::to_string(given) + " values where " + shape_text() +
                        " takes " + std::to_string(elements_));
        }
        if (given == 0 && foreign_) {
            return fail(problem, TensorFault::size, "no values, but some in the list of another dtype");
        }
        if (outside_) return fail(problem, TensorFault::value, "the value " + std::to_string(outlier_));
        // a string is copied for each element that repeats it, even if the shape is specified
        const std::size_t each = spec_.item == 0 ? last_bytes_ + sizeof(std::int64_t) : spec_.item;
        const std::size_t repeated = elements_ - given;
        if ((open_ || spec_.item == 0) && repeated > most_repeated / each) {
            return fail(problem, TensorFault::size, std::to_string(given) + " values where " + shape_text() +
                        " takes " + std::to_string(elements_) + ", more than a value may be repeated");
        }
        string_bytes_ = listed_bytes_ + repeated * last_bytes_;
        return true;
    }

    // Content of a string tensor in TensorFlow: all sizes as varints, then all bytes.
    bool strings_fit(TensorProblem& problem) {
        Cursor rest = content_;
        std::uint64_t total = 0;
        std::size_t sized = 0;
        std::uint32_t size;
        for (; sized < elements_ && rest.small_varint(size, UINT32_MAX); ++sized) total += size;
        if (sized < elements_ || total != rest.left()) {
            return fail(problem, TensorFault::size, std::to_string(content_.left()) + " bytes of content that are no " +
                        std::to_string(elements_) + " strings of " + shape_text());
        }
        string_bytes_ = rest.left();
        return true;
    }

    void read_string_content(Buffer& values, Buffer& splits) const {
        auto end = static_cast<std::int64_t>(values.size());
        Cursor rest = content_;
        std::uint32_t size;
        for (std::size_t i = 0; i < elements_ && rest.small_varint(size, UINT32_MAX); ++i) splits.push(end += size);
        values.append(rest.here(), string_bytes_);
    }

    void read_string_list(Buffer& values, Buffer& splits) const {
        Cursor last(message_.here(), 0);
        for (Cursor rest = message_; !rest.empty();) {
            std::uint32_t tag;
            if (!rest.tag(tag)) return;
            if (tag != length_delimited(list_)) {
                if (!rest.skip(tag, in_tensor)) return;
            } else if (rest.delimited(last)) {
                values.append(last.here(), last.left());
                splits.push(static_cast<std::int64_t>(values.size()));
            }
        }
        for (std::size_t i = count_; i < elements_; ++i) {
            values.append(last.here(), last.left());
            splits.push(static_cast<std::int64_t>(values.size()));
        }
    }

    void read_list(std::uint8_t* out) const {
        if (spec_.dtype == static_cast<int>(DataType::boolean)) return read_numbers<bool>(out);
        switch (spec_.item / parts()) {
            case 1: return read_numbers<std::uint8_t>(out);
            case 2: return read_numbers<std::uint16_t>(out);
            case 4: return read_numbers<std::uint32_t>(out);
            default: return read_numbers<std::uint64_t>(out);
        }
    }

    // Each value is in the low bytes of its bits; a bool is true if it is not 0.
    template <class T>
    void read_numbers(std::uint8_t* out) const {
        const auto write = [&out](const std::int64_t* run, std::size_t n) {
            for (std::size_t i = 0; i < n; ++i) {
                const T item = static_cast<T>(run[i]);
                std::memcpy(out + i * sizeof item, &item, sizeof item);
            }
            out += n * sizeof(T);
        };
        for (Cursor rest = message_; !rest.empty();) {
            std::uint32_t tag;
            if (!rest.tag(tag)) return;
            const auto values = tag >> 3 == list_ ? listed(list_) : std::nullopt;
            if (!visit_values(rest, tag, values, in_tensor, write)) return;
        }
    }

    // Repeat the last item of the first `written` bytes up to `size`.
    void repeat(std::uint8_t* out, std::size_t written, std::size_t size) const {
        const std::uint8_t* source = out + written - spec_.item;
        while (written < size) {
            const std::size_t there = static_cast<std::size_t>(out + written - source);
            const std::size_t more = there < size - written ? there : size - written;
            std::memcpy(out + written, source, more);
            written += more;
        }
    }

    // Numbers per element in the list.
    std::size_t parts() const {
        const auto dtype = static_cast<DataType>(spec_.dtype);
        return dtype == DataType::complex64 || dtype == DataType::complex128 ? 2 : 1;
    }

    std::string shape_text() const {
        if (unknown_rank_) return "a shape of unknown rank";
        if (rank_ > most_dims) return "a shape of " + std::to_string(rank_) + " dimensions";
        std::string text;
        for (std::size_t i = 0; i < rank_; ++i) text += (i == 0 ? "" : ", ") + std::to_string(sizes_[i]);
        return "shape (" + text + (rank_ == 1 ? ",)" : ")");
    }

    static bool fail(TensorProblem& problem, TensorFault fault, std::string text) {
        problem.fault = fault;
        problem.text = std::move(text);
        return false;
    }

    const TensorSpec& spec_;
    std::uint32_t list_;  // field with the values of the specified dtype
    Cursor message_{nullptr, 0};
    Cursor content_{nullptr, 0};
    int dtype_ = 0;
    std::size_t rank_ = 0;
    std::int64_t sizes_[most_dims];
    bool unknown_rank_ = false;
    bool open_ = false;  // a size of the shape comes from the message
    std::size_t elements_ = 0;
    std::size_t count_ = 0;     // of numbers or strings in the list
    bool foreign_ = false;      // other lists have values
    bool outside_ = false;      // the list has a value that the dtype cannot hold,
    std::int32_t outlier_ = 0;  // this one
    std::size_t listed_bytes_ = 0;  // of all strings in the list
    std::size_t last_bytes_ = 0;    // of the last string
    std::size_t string_bytes_ = 0;  // of the strings of all elements
};

// Read one tensor: append its elements to `values` (for strings their bytes, and their ends to `splits`), and its shape
// to `shapes` if that is not null. Return whether it fits; on false nothing was appended. If `values` would grow beyond
// `most` bytes, the tensor is refused before memory is allocated.
inline bool read_tensor(Cursor proto, const TensorSpec& spec, Buffer& values, Buffer* splits, Buffer* shapes,
                        TensorProblem& problem, std::size_t most = std::numeric_limits<std::size_t>::max()) {
    Tensor tensor(spec);
    if (!tensor.scan(proto)) {
        problem = {TensorFault::malformed, 0, {}};
        return false;
    }
    if (!tensor.fits(problem)) return false;
    if (values.over(most, tensor.nbytes() + (splits == nullptr ? 0 : splits->size()))) {
        problem.fault = TensorFault::full;
        return false;
    }
    const std::size_t before = values.size();
    const std::size_t splits_before = splits == nullptr ? 0 : splits->size();
    if (tensor.read(values, splits) && (shapes == nullptr || tensor.read_shape(*shapes))) return true;
    values.truncate(before);
    if (splits != nullptr) splits->truncate(splits_before);
    problem.fault = TensorFault::full;
    return false;
}

// Read a tensor from each row of `protos`, one after the other. With open sizes, `ends` receives the end of each tensor
// in elements, and `shapes` its sizes; both are null otherwise. Return the number of tensors that were read: if it is
// not `rows`, `problem` describes the next one. Splits beyond `protos` are a malformed tensor.
inline std::size_t read_tensors(Cursor protos, const std::int64_t* splits, std::size_t rows, const TensorSpec& spec,
                                Buffer& values, Buffer* value_splits, Buffer* ends, Buffer* shapes,
                                TensorProblem& problem, std::size_t most) {
    for (std::size_t row = 0; row < rows; ++row) {
        const std::uint64_t begin = split_at(splits, row), end = split_at(splits, row + 1);
        if (begin > end || end > protos.left()) {
            problem = {TensorFault::malformed, 0, {}};
            return row;
        }
        const Cursor proto(protos.here() + begin, static_cast<std::size_t>(end - begin));
        if (!read_tensor(proto, spec, values, value_splits, shapes, problem, most)) return row;
        if (ends == nullptr) continue;
        const std::size_t elements =
            value_splits == nullptr ? values.size() / spec.item : value_splits->size() / sizeof(std::int64_t) - 1;
        ends->push(static_cast<std::int64_t>(elements));
    }
    return rows;
}

}  // namespace dtf
