// Memory that grows, or is lent and does not, or is left when it is full, or that nothing is kept in.
#pragma once

#include <cstdlib>
#include <limits>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "cursor.hpp"

namespace dtf {

// Bytes of a column: in its own memory, or in the caller's, which never grows: what has no place there is refused where
// it was lent, and all moves to memory of its own where it was offered. Or gone as soon as they are counted.
class Buffer {
public:
    Buffer() = default;
    Buffer(std::uint8_t* memory, std::size_t size) : data_(memory), capacity_(size), borrowed_(true) {}

    static Buffer offered(std::uint8_t* memory, std::size_t size) {
        Buffer made(memory, size);
        made.moves_ = true;
        return made;
    }

    // Counts what it is given, and keeps none of it.
    static Buffer counter() {
        Buffer made;
        made.keeps_ = false;
        return made;
    }

    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Buffer() {
        if (!borrowed_) std::free(data_);
    }

    std::size_t size() const { return size_; }
    std::size_t room() const { return keeps_ ? capacity_ - size_ : 0; }
    bool borrowed() const { return borrowed_; }
    bool moves() const { return moves_; }
    bool keeps() const { return keeps_; }
    std::uint8_t* data() { return data_; }

    // A place for n more bytes at the end, or null where the caller's memory has none. What is not kept is written over
    // by what comes next.
    DTF_INLINE std::uint8_t* grow(std::size_t n) {
        if (n == 0) return &nothing_;  // null would say that there is no place
        if (!keeps_) return pass(n);
        if (!reserve(n)) return nullptr;
        std::uint8_t* place = data_ + size_;
        size_ += n;
        return place;
    }

    // Copies n bytes to the end; false where the caller's memory has no place.
    bool append(const std::uint8_t* from, std::size_t n) {
        if (!keeps_) {
            size_ += n;
            return true;
        }
        std::uint8_t* place = grow(n);
        if (place == nullptr) return false;
        if (n == sizeof(float)) {
            std::memcpy(place, from, sizeof(float));  // the compiler's own, no call
        } else if (n > 0) {
            std::memcpy(place, from, n);
        }
        return true;
    }

    DTF_INLINE bool reserve(std::size_t n) { return !keeps_ || n <= capacity_ - size_ || make_room(n); }

    // Room for `times` what is there, if there is as much: memory that is never touched costs nothing, growing does.
    void expect(double times) {
        constexpr double worth = 1 << 16, most = 1ull << 40;
        const double total = times * static_cast<double>(size_);
        if (!borrowed_ && keeps_ && total > worth && total > static_cast<double>(capacity_) && total < most) {
            resize(static_cast<std::size_t>(total));
        }
    }

    void truncate(std::size_t size) { size_ = size; }

    template <class T>
    DTF_INLINE bool push(T value) {
        std::uint8_t* place = grow(sizeof value);
        if (place == nullptr) return false;
        std::memcpy(place, &value, sizeof value);
        return true;
    }

    template <class T>
    T at(std::size_t index) const {
        return load<T>(data_ + index * sizeof(T));
    }

    // The memory itself, cut to size and never null; the buffer is empty afterwards.
    std::uint8_t* release() {
        std::uint8_t* memory = data_;
        if (size_ < capacity_ || memory == nullptr) {
            if (void* cut = std::realloc(memory, size_ > 0 ? size_ : 1)) memory = static_cast<std::uint8_t*>(cut);
        }
        data_ = nullptr;
        size_ = capacity_ = 0;
        return memory;
    }

private:
    // Counts n bytes, and gives them a place for as long as they are the last ones.
    DTF_APART std::uint8_t* pass(std::size_t n) {
        if (n > capacity_ && !resize(n)) throw std::bad_alloc();
        size_ += n;
        return data_;
    }

    DTF_APART bool make_room(std::size_t n) {
        if (borrowed_ && !moves_) return false;
        if (n > std::numeric_limits<std::size_t>::max() / 4 - size_) throw std::bad_alloc();
        if (!resize(size_ + n > 2 * capacity_ ? size_ + n : 2 * capacity_)) throw std::bad_alloc();
        return true;
    }

    bool resize(std::size_t capacity) {
        void* moved = borrowed_ ? std::malloc(capacity) : std::realloc(data_, capacity);
        if (moved == nullptr) return false;
        if (borrowed_ && size_ > 0) std::memcpy(moved, data_, size_);
        borrowed_ = moves_ = false;
        data_ = static_cast<std::uint8_t*>(moved);
        capacity_ = capacity;
        ask_for_huge_pages();
        return true;
    }

    // A fault per 4 KiB page costs more than decoding into it does; NumPy asks for the same.
    void ask_for_huge_pages() {
#if defined(__linux__)
        constexpr std::uintptr_t page = 4096;
        if (capacity_ < std::size_t{4} << 20) return;
        // Whole pages outwards: a mapping of which a part is advised is two to the kernel, and mremap, by which
        // realloc grows without copying, refuses those.
        const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(data_) / page * page;
        const std::uintptr_t past = (reinterpret_cast<std::uintptr_t>(data_) + capacity_ + page - 1) / page * page;
        madvise(reinterpret_cast<void*>(first), past - first, MADV_HUGEPAGE);
#endif
    }

    void swap(Buffer& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
        std::swap(borrowed_, other.borrowed_);
        std::swap(keeps_, other.keeps_);
        std::swap(moves_, other.moves_);
    }

    std::uint8_t nothing_ = 0;
    std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
    bool borrowed_ = false;
    bool keeps_ = true;
    bool moves_ = false;
};

}  // namespace dtf
