"""The numbers of the fields in Caffe's binary files, by message: those of Caffe 1.0, and of SSD's fork for its layers.

They are the interface of existing files. A field without a number (of a fork whose numbers others use too) is known in
text files only: it is not written into binary ones.
"""

from __future__ import annotations

from typing import Final

_LAYERS = """
    transform_param 100, loss_param 101, accuracy_param 102, argmax_param 103, concat_param 104,
    contrastive_loss_param 105, convolution_param 106, data_param 107, dropout_param 108, dummy_data_param 109,
    eltwise_param 110, exp_param 111, hdf5_data_param 112, hdf5_output_param 113, hinge_loss_param 114,
    image_data_param 115, infogain_loss_param 116, inner_product_param 117, lrn_param 118, memory_data_param 119,
    mvn_param 120, pooling_param 121, power_param 122, relu_param 123, sigmoid_param 124, softmax_param 125,
    slice_param 126, tanh_param 127, threshold_param 128, window_data_param 129, python_param 130, prelu_param 131,
    spp_param 132, reshape_param 133, log_param 134, flatten_param 135, reduction_param 136, embed_param 137,
    tile_param 138, batch_norm_param 139, elu_param 140, bias_param 141, scale_param 142, input_param 143,
    crop_param 144, parameter_param 145, recurrent_param 146, swish_param 147, clip_param 148,
    multibox_loss_param 201, permute_param 202, prior_box_param 203, detection_output_param 204,
    detection_evaluate_param 205, norm_param 206
"""

_TEXT: Final = {
    "BlobShape": "dim 1",
    "FillerParameter": "type 1, value 2, min 3, max 4, mean 5, std 6, sparse 7, variance_norm 8",
    "NetState": "phase 1, level 2, stage 3",
    "NetStateRule": "phase 1, min_level 2, max_level 3, stage 4, not_stage 5",
    "ParamSpec": "name 1, share_mode 2, lr_mult 3, decay_mult 4",
    "NetParameter": """
        name 1, layers 2, input 3, input_dim 4, force_backward 5, state 6, debug_info 7, input_shape 8, layer 100
    """,
    "LayerParameter": f"""
        name 1, type 2, bottom 3, top 4, loss_weight 5, param 6, include 8, exclude 9, phase 10, propagate_down 11,
        {_LAYERS}
    """,
    "V1LayerParameter": """
        layer 1, bottom 2, top 3, name 4, type 5, blobs_lr 7, weight_decay 8, concat_param 9, convolution_param 10,
        data_param 11, dropout_param 12, hdf5_data_param 13, hdf5_output_param 14, image_data_param 15,
        infogain_loss_param 16, inner_product_param 17, lrn_param 18, pooling_param 19, window_data_param 20,
        power_param 21, memory_data_param 22, argmax_param 23, eltwise_param 24, threshold_param 25,
        dummy_data_param 26, accuracy_param 27, hinge_loss_param 29, relu_param 30, slice_param 31, include 32,
        exclude 33, mvn_param 34, loss_weight 35, transform_param 36, tanh_param 37, sigmoid_param 38,
        softmax_param 39, contrastive_loss_param 40, exp_param 41, loss_param 42, param 1001, blob_share_mode 1002
    """,
    "V0LayerParameter": """
        name 1, type 2, num_output 3, biasterm 4, weight_filler 5, bias_filler 6, pad 7, kernelsize 8, group 9,
        stride 10, pool 11, dropout_ratio 12, local_size 13, alpha 14, beta 15, source 16, scale 17, meanfile 18,
        batchsize 19, cropsize 20, mirror 21, k 22, blobs_lr 51, weight_decay 52, rand_skip 53, det_fg_threshold 54,
        det_bg_threshold 55, det_fg_fraction 56, det_context_pad 58, det_crop_mode 59, new_num 60, new_channels 61,
        new_height 62, new_width 63, shuffle_images 64, concat_dim 65, hdf5_output_param 1001
    """,
    "SolverParameter": """
        train_net 1, test_net 2, test_iter 3, test_interval 4, base_lr 5, display 6, max_iter 7, lr_policy 8, gamma 9,
        power 10, momentum 11, weight_decay 12, stepsize 13, snapshot 14, snapshot_prefix 15, snapshot_diff 16,
        solver_mode 17, device_id 18, test_compute_loss 19, random_seed 20, train_net_param 21, test_net_param 22,
        debug_info 23, net 24, net_param 25, train_state 26, test_state 27, snapshot_after_train 28,
        regularization_type 29, solver_type 30, delta 31, test_initialization 32, average_loss 33, stepvalue 34,
        clip_gradients 35, iter_size 36, snapshot_format 37, rms_decay 38, momentum2 39, type 40,
        layer_wise_reduce 41, weights 42
    """,
    "TransformationParameter": """
        scale 1, mirror 2, crop_size 3, mean_file 4, mean_value 5, force_color 6, force_gray 7
    """,
    "LossParameter": "ignore_label 1, normalize 2, normalization 3",
    "AccuracyParameter": "top_k 1, axis 2, ignore_label 3",
    "ArgMaxParameter": "out_max_val 1, top_k 2, axis 3",
    "BatchNormParameter": "use_global_stats 1, moving_average_fraction 2, eps 3",
    "BiasParameter": "axis 1, num_axes 2, filler 3",
    "ClipParameter": "min 1, max 2",
    "ConcatParameter": "concat_dim 1, axis 2",
    "ContrastiveLossParameter": "margin 1, legacy_version 2",
    "ConvolutionParameter": """
        num_output 1, bias_term 2, pad 3, kernel_size 4, group 5, stride 6, weight_filler 7, bias_filler 8, pad_h 9,
        pad_w 10, kernel_h 11, kernel_w 12, stride_h 13, stride_w 14, engine 15, axis 16, force_nd_im2col 17,
        dilation 18
    """,
    "CropParameter": "axis 1, offset 2",
    "DataParameter": """
        source 1, scale 2, mean_file 3, batch_size 4, crop_size 5, mirror 6, rand_skip 7, backend 8,
        force_encoded_color 9, prefetch 10
    """,
    "NonMaximumSuppressionParameter": "nms_threshold 1, top_k 2, eta 3",
    "SaveOutputParameter": """
        output_directory 1, output_name_prefix 2, output_format 3, label_map_file 4, name_size_file 5, num_test_image 6
    """,
    "DetectionOutputParameter": """
        num_classes 1, share_location 2, background_label_id 3, nms_param 4, save_output_param 5, code_type 6,
        keep_top_k 7, variance_encoded_in_target 8, confidence_threshold 9
    """,
    "DropoutParameter": "dropout_ratio 1",
    "DummyDataParameter": "data_filler 1, num 2, channels 3, height 4, width 5, shape 6",
    "EltwiseParameter": "operation 1, coeff 2, stable_prod_grad 3",
    "ELUParameter": "alpha 1",
    "EmbedParameter": "num_output 1, input_dim 2, bias_term 3, weight_filler 4, bias_filler 5",
    "ExpParameter": "base 1, scale 2, shift 3",
    "FlattenParameter": "axis 1, end_axis 2",
    "HDF5DataParameter": "source 1, batch_size 2, shuffle 3",
    "HDF5OutputParameter": "file_name 1",
    "HingeLossParameter": "norm 1",
    "ImageDataParameter": """
        source 1, scale 2, mean_file 3, batch_size 4, crop_size 5, mirror 6, rand_skip 7, shuffle 8, new_height 9,
        new_width 10, is_color 11, root_folder 12
    """,
    "InfogainLossParameter": "source 1, axis 2",
    "InnerProductParameter": """
        num_output 1, bias_term 2, weight_filler 3, bias_filler 4, axis 5, transpose 6
    """,
    "InputParameter": "shape 1",
    "LogParameter": "base 1, scale 2, shift 3",
    "LRNParameter": "local_size 1, alpha 2, beta 3, norm_region 4, k 5, engine 6",
    "MemoryDataParameter": "batch_size 1, channels 2, height 3, width 4",
    "MVNParameter": "normalize_variance 1, across_channels 2, eps 3",
    "NormalizeParameter": "across_spatial 1, scale_filler 2, channel_shared 3, eps 4",
    "ParameterParameter": "shape 1",
    "PermuteParameter": "order 1",
    "PoolingParameter": """
        pool 1, kernel_size 2, stride 3, pad 4, kernel_h 5, kernel_w 6, stride_h 7, stride_w 8, pad_h 9, pad_w 10,
        engine 11, global_pooling 12, round_mode 13
    """,
    "PowerParameter": "power 1, scale 2, shift 3",
    "PReLUParameter": "filler 1, channel_shared 2",
    "PriorBoxParameter": """
        min_size 1, max_size 2, aspect_ratio 3, flip 4, clip 5, variance 6, img_size 7, img_h 8, img_w 9, step 10,
        step_h 11, step_w 12, offset 13
    """,
    "PythonParameter": "module 1, layer 2, param_str 3, share_in_parallel 4",
    "RecurrentParameter": "num_output 1, weight_filler 2, bias_filler 3, debug_info 4, expose_hidden 5",
    "ReductionParameter": "operation 1, axis 2, coeff 3",
    "ReLUParameter": "negative_slope 1, engine 2",
    "ReshapeParameter": "shape 1, axis 2, num_axes 3",
    "ScaleParameter": "axis 1, num_axes 2, filler 3, bias_term 4, bias_filler 5",
    "SigmoidParameter": "engine 1",
    "SliceParameter": "slice_dim 1, slice_point 2, axis 3",
    "SoftmaxParameter": "engine 1, axis 2",
    "SPPParameter": "pyramid_height 1, pool 2, engine 6",
    "SwishParameter": "beta 1",
    "TanHParameter": "engine 1",
    "ThresholdParameter": "threshold 1",
    "TileParameter": "axis 1, tiles 2",
    "WindowDataParameter": """
        source 1, scale 2, mean_file 3, batch_size 4, crop_size 5, mirror 6, fg_threshold 7, bg_threshold 8,
        fg_fraction 9, context_pad 10, crop_mode 11, cache_images 12, root_folder 13
    """,
}

#: by the name of a message's class, the number of each field
NUMBERS: Final[dict[str, dict[str, int]]] = {
    message: {name: int(number) for name, number in (entry.split() for entry in text.split(","))}
    for message, text in _TEXT.items()
}
