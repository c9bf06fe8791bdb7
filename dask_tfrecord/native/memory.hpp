// Memory that a buffer owns: from malloc, or mapped in huge pages if it is large.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

// AddressSanitizer checks the bounds of memory from malloc only.
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
#define DTF_HUGE_PAGES 1
#include <sys/mman.h>

#include <mutex>
#endif

namespace dtf {

#if defined(DTF_HUGE_PAGES)

// Freed mappings for the next large buffers: clearing new pages takes longer than decoding into them.
class Spares {
public:
    struct Spare {
        std::uint8_t* data;
        std::size_t size;
    };

    // Keep a mapping; false if that would be too many, or if another thread is here.
    bool keep(Spare freed) {
        const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
        if (!lock.owns_lock() || freed.size > most - total_) return false;
        for (Spare& spare : spares_) {
            if (spare.data != nullptr) continue;
            spare = freed;
            total_ += freed.size;
            return true;
        }
        return false;
    }

    // Return the largest mapping, empty if there is none or if another thread is here.
    Spare take() {
        const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
        Spare largest{};
        if (!lock.owns_lock()) return largest;
        for (Spare& spare : spares_) {
            if (spare.size > largest.size) std::swap(spare, largest);
        }
        total_ -= largest.size;
        return largest;
    }

private:
    static constexpr std::size_t most = std::size_t{128} << 20;
    std::mutex mutex_;  // never waited for: a forked process could wait forever
    std::size_t total_ = 0;
    Spare spares_[16] = {};
};

inline Spares spares;

#endif

// A page fault for every 4 KiB costs more than decoding into the page. After the first large block is freed, malloc
// takes the next ones from its heap, where they start within a huge page and move by copying. Mapped memory starts with
// a huge page and grows without a copy.
class Memory {
public:
    Memory() = default;
    Memory(Memory&& other) noexcept { swap(other); }
    Memory& operator=(Memory&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Memory() {
#if defined(DTF_HUGE_PAGES)
        if (mapped_) {
            if (size_ < worth_mapping || !spares.keep({data_, size_})) munmap(data_, size_);
            return;
        }
#endif
        std::free(data_);
    }

    std::uint8_t* data() const { return data_; }
    std::size_t size() const { return size_; }

    // Change the size to `size` bytes, at least 1, or to more. The content remains. False if there is no
    // memory; then nothing changes.
    bool resize(std::size_t size) {
#if defined(DTF_HUGE_PAGES)
        if (mapped_ && size < size_) return cut(size);
        if (!mapped_ && size >= worth_mapping) take_spare();
        if (mapped_ && size <= size_) return true;
        if (mapped_ || size >= worth_mapping) return map_again(size);
#endif
        void* moved = std::realloc(data_, size);
        if (moved == nullptr) return false;
        data_ = static_cast<std::uint8_t*>(moved);
        size_ = size;
        return true;
    }

private:
    void swap(Memory& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(mapped_, other.mapped_);
    }

#if defined(DTF_HUGE_PAGES)
    // Continue in a spare mapping, if there is one. It is larger than what is not mapped.
    void take_spare() {
        const Spares::Spare spare = spares.take();
        if (spare.data == nullptr) return;
        if (size_ > 0) std::memcpy(spare.data, data_, size_);
        std::free(data_);
        data_ = spare.data;
        size_ = spare.size;
        mapped_ = true;
    }

    static constexpr std::size_t huge_page = std::size_t{2} << 20, worth_mapping = 2 * huge_page;

    bool cut(std::size_t size) {
        if (mremap(data_, size_, size, 0) == MAP_FAILED) return false;
        size_ = size;
        return true;
    }

    // Move to a larger mapping. Pages of mapped memory move without a copy.
    bool map_again(std::size_t size) {
        if (size > SIZE_MAX - 2 * huge_page) return false;
        size = (size + huge_page - 1) / huge_page * huge_page;
        std::uint8_t* place = map(size);
        if (place == nullptr) return false;
        if (mapped_) {
            if (mremap(data_, size_, size, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) {
                munmap(place, size);
                return false;
            }
        } else {
            if (size_ > 0) std::memcpy(place, data_, size_);
            std::free(data_);
        }
        data_ = place;
        size_ = size;
        mapped_ = true;
        return true;
    }

    // Map memory that starts with a huge page; null if there is none.
    static std::uint8_t* map(std::size_t size) {
        void* found = mmap(nullptr, size + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (found == MAP_FAILED) return nullptr;
        auto* begin = static_cast<std::uint8_t*>(found);
        const std::size_t before = (huge_page - reinterpret_cast<std::uintptr_t>(begin) % huge_page) % huge_page;
        if (before > 0) munmap(begin, before);
        munmap(begin + before + size, huge_page - before);
        madvise(begin + before, size, MADV_HUGEPAGE);
        return begin + before;
    }
#endif

    std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
    bool mapped_ = false;
};

}  // namespace dtf
