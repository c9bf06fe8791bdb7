// Memory that a buffer owns: from malloc, or mapped in huge pages if it is large.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "machine.hpp"

// AddressSanitizer checks the bounds of memory from malloc only.
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
#define DTF_HUGE_PAGES 1
#include <sys/mman.h>

#include <atomic>
#include <mutex>
#endif

namespace dtf {

#if defined(DTF_HUGE_PAGES)

// Freed mappings for the next large buffers: clearing new pages takes longer than decoding into them. Each thread has a
// shelf that it looks at first, so that threads rarely meet; a block is often freed by another thread than decoded it.
class Spares {
public:
    struct Spare {
        std::uint8_t* data;
        std::size_t size;
    };

    // Keep a mapping; false if that would be too many, or if other threads are at all shelves.
    bool keep(Spare freed) {
        std::size_t before = total_.load(std::memory_order_relaxed);
        do {
            if (freed.size > most || before > most - freed.size) return false;
        } while (!total_.compare_exchange_weak(before, before + freed.size, std::memory_order_relaxed));
        for (std::size_t i = 0; i < shelves; ++i) {
            Shelf& shelf = shelves_[(own() + i) % shelves];
            const std::unique_lock<std::mutex> lock(shelf.mutex, std::try_to_lock);
            if (!lock.owns_lock()) continue;
            for (Spare& spare : shelf.spares) {
                if (spare.data != nullptr) continue;
                spare = freed;
                return true;
            }
        }
        total_.fetch_sub(freed.size, std::memory_order_relaxed);
        return false;
    }

    // Return the smallest mapping of `size` bytes or more, or else the largest one, which can grow; empty if there is
    // none. A larger one than that is cut when its block is complete, so that its other pages are lost.
    Spare take(std::size_t size) {
        for (const bool any : {false, true}) {
            for (std::size_t i = 0; i < shelves; ++i) {
                Shelf& shelf = shelves_[(own() + i) % shelves];
                const std::unique_lock<std::mutex> lock(shelf.mutex, std::try_to_lock);
                if (!lock.owns_lock()) continue;
                Spare* best = nullptr;
                for (Spare& spare : shelf.spares) {
                    if (spare.data == nullptr || (spare.size < size) != any) continue;
                    if (best == nullptr || (spare.size < best->size) != any) best = &spare;
                }
                if (best == nullptr) continue;
                const Spare found = std::exchange(*best, Spare{});
                total_.fetch_sub(found.size, std::memory_order_relaxed);
                return found;
            }
        }
        return {};
    }

private:
    static constexpr std::size_t most = std::size_t{128} << 20, shelves = 16;

    struct Shelf {
        std::mutex mutex;  // never waited for: a forked process could wait forever
        Spare spares[16] = {};
    };

    // Number of the shelf of this thread.
    static std::size_t own() {
        static std::atomic<std::size_t> threads{0};
        thread_local const std::size_t number = threads.fetch_add(1, std::memory_order_relaxed) % shelves;
        return number;
    }

    std::atomic<std::size_t> total_{0};  // bytes on all shelves; it is raised before a mapping enters one
    Shelf shelves_[shelves];
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
        if (data_ != nullptr) discard();
    }

    std::uint8_t* data() const { return data_; }
    std::size_t size() const { return size_; }

    // Change the size to `size` bytes, at least 1, or to more. The content remains. False if there is no
    // memory; then nothing changes.
    DTF_APART bool resize(std::size_t size) {
#if defined(DTF_HUGE_PAGES)
        if (mapped_ && size < size_) return cut(size);
        if (!mapped_ && size >= worth_mapping) take_spare(size);
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
    DTF_APART void discard() {
#if defined(DTF_HUGE_PAGES)
        if (mapped_) {
            if (size_ < worth_mapping || !spares.keep({data_, size_})) munmap(data_, size_);
            return;
        }
#endif
        std::free(data_);
    }

    void swap(Memory& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(mapped_, other.mapped_);
    }

#if defined(DTF_HUGE_PAGES)
    // Continue in a spare mapping, if there is one. It is larger than what is not mapped.
    void take_spare(std::size_t size) {
        const Spares::Spare spare = spares.take(size);
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
