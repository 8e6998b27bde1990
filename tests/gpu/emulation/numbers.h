// Half precision, tf32 and 8-bit reals in whole numbers, rounded as the GPU rounds.
#pragma once
#include "runtime.h"

namespace emulation {

static inline float f32_of_bits(Word bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

static inline Word bits_of_f32(float value) {
    Word bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_of_f16(unsigned short half) {
    const Word magnitude = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
    if (magnitude >= 0x7c00u << 13) return f32_of_bits(sign | magnitude | 0x7f800000u);
    const float value = f32_of_bits(magnitude) * 0x1p112f;  // the exponents' biases differ by 112
    return sign ? -value : value;
}

static inline unsigned short f16_of_f32(float value) {
    const Word bits = bits_of_f32(value);
    const Word sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);  // 65520 and more
    if (magnitude < 0x38800000u) {  // below 2^-14 steps are 2^-24: the sum with 0.5 rounds to them
        return static_cast<unsigned short>(sign | (bits_of_f32(f32_of_bits(magnitude) + 0.5f) - 0x3f000000u));
    }
    const Word rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<unsigned short>(sign | (rounded - 0x38000000u) >> 13);
}

static inline unsigned short bf16_of_f32(float value) {
    const Word bits = bits_of_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// 8-bit reals with so many bits of mantissa: 3 (e4m3, whose only special number is NaN) or 2 (e5m2).
template <int mantissa>
static inline float f32_of_f8(unsigned char bits) {
    constexpr int bias = mantissa == 3 ? 7 : 15;
    const int exponent = (bits & 0x7f) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
    const float sign = bits & 0x80 ? -1.0f : 1.0f;
    if (mantissa == 3 && (bits & 0x7f) == 0x7f) return __builtin_nanf("");
    if (mantissa == 2 && exponent == 31) return fraction ? __builtin_nanf("") : sign * __builtin_inff();
    const int whole = exponent ? (1 << mantissa) + fraction : fraction, scale = (exponent ? exponent : 1) - bias - mantissa;
    return sign * static_cast<float>(whole) * f32_of_bits(static_cast<Word>(scale + 127) << 23);
}

// Beyond the range the largest finite number.
template <int mantissa>
static inline unsigned char f8_of_f32(float value) {
    constexpr int bias = mantissa == 3 ? 7 : 15, largest = mantissa == 3 ? 0x7e : 0x7b;
    const Word bits = bits_of_f32(value), magnitude = bits & 0x7fffffffu;
    const unsigned char sign = static_cast<unsigned char>(bits >> 24 & 0x80u);
    if (magnitude > 0x7f800000u) return 0x7f;
    const int exponent = static_cast<int>(magnitude >> 23) - 127;
    const int least = exponent < 1 - bias ? 1 - bias : exponent;  // of the place that is rounded
    if (exponent > bias + 1) return sign | largest;
    const float place = f32_of_bits(static_cast<Word>(least - mantissa + 127) << 23);
    const int whole = static_cast<int>(__builtin_rintf(f32_of_bits(magnitude) / place));
    const int rounded = ((least + bias - 1) << mantissa) + whole;
    return sign | static_cast<unsigned char>(rounded > largest ? largest : rounded);
}

// Ties away from zero.
static inline Word tf32_of_f32(float value) {
    const Word bits = bits_of_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffffffu;
    return (bits & 0x7fffffffu) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

}  // namespace emulation
