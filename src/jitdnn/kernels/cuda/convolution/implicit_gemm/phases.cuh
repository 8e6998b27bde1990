// What the host says of a product of fprop_dgrad.cu, tables.py in the same order, and its stride phases. Arrays of
// three have a number for each axis of space.

// One axis of a stride phase: see PhaseAxis.
struct AxisPhase {
    Divisor results, taps;
    i64 first_result, data_offset, first_tap;
};

struct __align__(64) Tables {
    Work work;
    i64 phase_count, images;
    Divisor axis_phases[3];     // along each axis of space, of which the first is number first_axis_phase
    i64 first_axis_phase[3];
    Divisor in_channels;        // of the data in a group
    i64 filter_in_channels;     // of them the filter has
    Divisor blocks_of_tap;      // of K, if IS_OF_ONE_TAP
    i64 out_channels;           // of the result in a group
    i64 filter_out_channels;    // of the filter that may be read
    i64 dilation[3];            // positions of the data from tap to tap of a phase, of either sign
    i64 filter_steps[3];        // taps of the filter from tap to tap of a phase, of either sign
    i64 input_stride[3];        // positions of the data from result to result of a phase
    i64 output_stride[3];       // positions of the result from result to result of a phase
    i64 extents[3];             // positions of the data
    i64 is_masked[3];           // whether taps along the axis may lie outside
    Divisor groups_inner;       // groups of a run
    // strides in elements; _outer: from run to run of groups
    i64 data_image, data_group, data_channel, data_strides[3], data_outer;
    i64 filter_group, filter_column, filter_channel, filter_strides[3], filter_outer;
    i64 filter_line;            // bytes from a row of B that a thread copies to its next
    i64 result_image, result_group, result_column, result_strides[3], result_outer;
    i64 data_step, result_step;
    Divisor plane;              // pixels of an image
    i64 data_at, filter_at;     // bytes into the workspace, where packed ones are; -1: they are not packed
#if AXIS_PHASES > 0
    AxisPhase axes[AXIS_PHASES];
#endif
};

#if AXIS_PHASES == 0
CONSTANT_TABLE AxisPhase more_axes[] = {AXIS_PHASE_TABLE};
#endif

// A stride phase: one for each choice of one along every axis, the last axis inside.
struct Phase {
    const Tables &tables;
    int number[3];

    METHOD Phase(const Tables &all, int phase) : tables(all), number{0, 1, 2} {
        if constexpr (IS_STRIDED) {
#pragma unroll
            for (int axis = 2; axis >= 0; --axis) {
                const int outer = quotient(phase, tables.axis_phases[axis]);
                number[axis] = (int)tables.first_axis_phase[axis] + phase - outer * (int)tables.axis_phases[axis].number;
                phase = outer;
            }
        }
    }

    METHOD AxisPhase operator[](int axis) const {
#if AXIS_PHASES > 0
        return tables.axes[number[axis]];
#else
        AxisPhase one = more_axes[number[axis]];
#ifdef SAME_RESULTS  // of all phases: divisions by them are by constants
        constexpr i64 results[3] = {SAME_RESULTS};
        one.results.number = results[axis];
#endif
        return one;
#endif
    }
};

FUNCTION INDEX pixels_of(const Tables &tables, const Phase &c) {
    return (INDEX)tables.images * (INDEX)c[0].results.number * (INDEX)c[1].results.number * (INDEX)c[2].results.number;
}

// Pixel m of a phase: its image, and its position along the axes.
FUNCTION INDEX pixel_position(const Phase &c, INDEX m, int (&position)[3]) {
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
        const INDEX rest = quotient(m, c[axis].results);
        position[axis] = (int)(m - rest * (INDEX)c[axis].results.number);
        m = rest;
    }
    return m;
}
