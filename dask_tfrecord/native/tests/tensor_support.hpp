// A writer of TensorProto messages, for the tests and the fuzzing of tensor.hpp.
#pragma once

#include "support.hpp"
#include "tensor.hpp"

namespace support {

using Sizes = std::vector<std::int64_t>;

struct Dtype {
    dtf::DataType number;
    std::size_t item;
    std::uint32_t list;       // the field of its values
    std::uint32_t wire_type;  // of one value there
};

inline const Dtype dtypes[] = {
    {dtf::DataType::float32, 4, 5, 5},    {dtf::DataType::float64, 8, 6, 1},     {dtf::DataType::int32, 4, 7, 0},
    {dtf::DataType::uint8, 1, 7, 0},      {dtf::DataType::int16, 2, 7, 0},       {dtf::DataType::int8, 1, 7, 0},
    {dtf::DataType::uint16, 2, 7, 0},     {dtf::DataType::int64, 8, 10, 0},      {dtf::DataType::boolean, 1, 11, 0},
    {dtf::DataType::float16, 2, 13, 0},   {dtf::DataType::bfloat16, 2, 13, 0},   {dtf::DataType::uint32, 4, 16, 0},
    {dtf::DataType::uint64, 8, 17, 0},    {dtf::DataType::complex64, 8, 9, 5},   {dtf::DataType::complex128, 16, 12, 1},
    {dtf::DataType::string, 0, 8, 2},
};

inline std::size_t parts(const Dtype& dtype) {
    return dtype.number == dtf::DataType::complex64 || dtype.number == dtf::DataType::complex128 ? 2 : 1;
}

inline std::string number(std::uint32_t field, std::int64_t value) {
    return tag(field, 0) + varint(static_cast<std::uint64_t>(value));
}

inline std::string dims(const Sizes& sizes) {
    std::string shape;
    for (const std::int64_t size : sizes) shape += delimited(2, number(1, size));
    return shape;
}

inline std::string header(dtf::DataType dtype, const Sizes& sizes) {
    return number(1, static_cast<int>(dtype)) + delimited(2, dims(sizes));
}

inline std::string content(std::string_view bytes) { return delimited(4, bytes); }

}  // namespace support
