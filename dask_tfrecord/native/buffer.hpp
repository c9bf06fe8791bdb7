// Output buffer of a column: owned, borrowed or count-only.
#pragma once

#include <limits>
#include <new>

#include "cursor.hpp"
#include "memory.hpp"

namespace dtf {

// Bytes of a column, in memory that its storage describes.
class Buffer {
    enum class Storage : std::uint8_t {
        owned,     // grows
        borrowed,  // of the caller: refuses more bytes when it is full
        offered,   // of the caller: moves to owned memory when it is full
        counter,   // keeps the size but no bytes
    };

public:
    Buffer() = default;
    // Borrow memory.
    Buffer(std::uint8_t* memory, std::size_t size) : Buffer(Storage::borrowed, memory, size) {}

    static Buffer offered(std::uint8_t* memory, std::size_t size) { return {Storage::offered, memory, size}; }
    static Buffer counter() { return {Storage::counter, nullptr, 0}; }

    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }

    std::size_t size() const { return size_; }
    std::size_t room() const { return keeps() ? capacity_ - size_ : 0; }
    // Return whether the memory belongs to the caller.
    bool borrowed() const { return storage_ == Storage::borrowed || storage_ == Storage::offered; }
    bool moves() const { return storage_ == Storage::offered; }
    bool keeps() const { return storage_ != Storage::counter; }
    // Return whether appending n bytes would grow owned memory beyond `most`.
    bool over(std::size_t most, std::size_t n) const {
        const bool grows = storage_ == Storage::owned || storage_ == Storage::offered;
        return grows && (size_ > most || n > most - size_);
    }
    std::uint8_t* data() { return data_; }

    // Append n bytes and return a pointer to them, or null if a borrowed buffer is full. A count-only buffer reuses the
    // memory for the next bytes.
    DTF_INLINE std::uint8_t* grow(std::size_t n) {
        if (n == 0) return &nothing_;  // null would mean that the buffer is full
        if (!keeps()) return pass(n);
        if (!reserve(n)) return nullptr;
        std::uint8_t* place = data_ + size_;
        size_ += n;
        return place;
    }

    // Append a copy of n bytes; false if a borrowed buffer is full.
    bool append(const std::uint8_t* from, std::size_t n) {
        if (!keeps()) {
            size_ += n;
            return true;
        }
        std::uint8_t* place = grow(n);
        if (place == nullptr) return false;
        if (n == sizeof(float)) {
            std::memcpy(place, from, sizeof(float));  // inlined by the compiler
        } else if (n > 0) {
            std::memcpy(place, from, n);
        }
        return true;
    }

    DTF_INLINE bool reserve(std::size_t n) { return !keeps() || n <= capacity_ - size_ || make_room(n); }

    // Allocate `factor` times the current size if that is large. Growing is expensive; memory that is never touched is
    // not.
    void preallocate(double factor) {
        constexpr double worth = 1 << 16, most = 1ull << 40;
        const double total = factor * static_cast<double>(size_);
        if (storage_ == Storage::owned && total > worth && total > static_cast<double>(capacity_) && total < most) {
            resize(static_cast<std::size_t>(total));
        }
    }

    void truncate(std::size_t size) { size_ = size; }

    template <class T>
    DTF_INLINE bool push(T value) {
        if (size_ + sizeof value > capacity_) return push_beyond(value);
        std::memcpy(data_ + size_, &value, sizeof value);
        size_ += sizeof value;
        return true;
    }

    template <class T>
    T at(std::size_t index) const {
        return load<T>(data_ + index * sizeof(T));
    }

    // Give up the memory, cut to size and never null. The buffer is empty afterwards.
    Memory release() {
        if (size_ < capacity_ || data_ == nullptr) owned_.resize(size_ > 0 ? size_ : 1);
        data_ = nullptr;
        size_ = capacity_ = 0;
        return std::move(owned_);
    }

private:
    Buffer(Storage storage, std::uint8_t* memory, std::size_t size) : data_(memory), capacity_(size), storage_(storage) {}

    // Count n bytes and return scratch memory for them, valid until the next call.
    DTF_APART std::uint8_t* pass(std::size_t n) {
        if (n > owned_.size() && !owned_.resize(n)) throw std::bad_alloc();
        size_ += n;
        return owned_.data();
    }

    // Append a value to a buffer that lacks the memory for it, or that keeps no bytes.
    template <class T>
    DTF_APART bool push_beyond(T value) {
        std::uint8_t* place = grow(sizeof value);
        if (place == nullptr) return false;
        std::memcpy(place, &value, sizeof value);
        return true;
    }

    DTF_APART bool make_room(std::size_t n) {
        if (storage_ == Storage::borrowed) return false;
        if (n > std::numeric_limits<std::size_t>::max() / 4 - size_) throw std::bad_alloc();
        if (!resize(size_ + n > 2 * capacity_ ? size_ + n : 2 * capacity_)) throw std::bad_alloc();
        return true;
    }

    bool resize(std::size_t capacity) {
        if (!owned_.resize(capacity)) return false;
        if (borrowed() && size_ > 0) std::memcpy(owned_.data(), data_, size_);
        storage_ = Storage::owned;
        data_ = owned_.data();
        capacity_ = owned_.size();
        return true;
    }

    void swap(Buffer& other) noexcept {
        std::swap(owned_, other.owned_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
        std::swap(storage_, other.storage_);
    }

    std::uint8_t nothing_ = 0;
    Memory owned_;  // empty while the memory is borrowed
    std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;  // also of a counter
    Storage storage_ = Storage::owned;
};

}  // namespace dtf
