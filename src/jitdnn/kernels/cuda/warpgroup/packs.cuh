// What kernels that pack operands share.

// One of two: number by number, since an index that is known only now would have all of them read through memory.
FUNCTION Pack chosen(bool is_second, const Pack &first, const Pack &second) {
    Pack one;
    auto choose = [&](i64 Pack::*number) { one.*number = is_second ? second.*number : first.*number; };
    choose(&Pack::at), choose(&Pack::between), choose(&Pack::is_flat), choose(&Pack::images), choose(&Pack::channels);
    choose(&Pack::packed_channels), choose(&Pack::image), choose(&Pack::channel);
#pragma unroll
    for (int n = 0; n < 3; ++n) {
        one.extents[n] = is_second ? second.extents[n] : first.extents[n];
        one.space[n] = is_second ? second.space[n] : first.space[n];
    }
    return one;
}

// Thread blocks that copy a tensor; 0 of one that is not copied.
FUNCTION int blocks_of(const Pack &form) {
    const i64 pixels = form.images * form.extents[0] * form.extents[1] * form.extents[2];
    return (int)((pixels + 63) / 64) * (((int)form.packed_channels + 63) / 64);
}
