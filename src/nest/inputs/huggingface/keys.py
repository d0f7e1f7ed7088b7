"""Keys of a Hugging Face config.json that change neither the seconds nor the bytes of a step.

A key that is neither here nor read by the reader of its model type in
:mod:`nest.inputs.huggingface.config` is refused, unless its value is nothing (null, false, 0,
empty): it may stand for operators that NEST does not know. Collected from the configuration classes
of huggingface/transformers 5.23.0 (their base, and src/transformers/models/*/configuration_*.py of
the model types that are read), what older versions wrote, and published files. Prices assume that
fused kernels apply dropout and soft-capping without further traffic, and that a checkpoint's
quantisation is not that of its training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FREE: dict[str, str] = {
    "the file, its software and the checkpoint": """
        architectures auto_map base_model_name_or_path custom_pipelines dtype is_llama_config
        model_type name name_or_path problem_type quantization quantization_config torch_dtype
        transformers.js_config transformers_version transformers_weights
    """,
    "tokens, text generation, classification": """
        bad_words_ids begin_suppress_tokens bos_token_id cache_implementation cls_token_id
        decoder_start_token_id diversity_penalty do_sample early_stopping
        encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty
        finetuning_task forced_bos_token_id forced_eos_token_id id2label is_decoder label2id
        length_penalty mask_token_id max_length min_length no_repeat_ngram_size num_beam_groups
        num_beams num_labels num_return_sequences pad_token_id predict_special_tokens prefix
        remove_invalid_values repetition_penalty return_dict return_dict_in_generate
        sep_token_id suppress_tokens task_specific_params temperature tokenizer_class top_k
        top_p typical_p unk_token_id use_cache is_encoder_decoder image_token_id
        video_token_id vision_start_token_id vision_end_token_id boi_token_index boi_token_id
        eoi_token_index eoi_token_id image_token_index image_seq_length vision_token_id
        num_logits_to_keep output_past eos_token_ids
    """,
    "outputs asked for, and the way they are computed": """
        attn_implementation chunk_size_feed_forward experts_implementation
        gradient_checkpointing output_attentions output_hidden_states output_router_logits
        output_scores pretraining_tp reorder_and_upcast_attn scale_attn_by_inverse_layer_idx
        scale_attn_weights torchscript use_bfloat16 slow_but_exact use_mamba_kernels
        use_mambapy use_associative_scan residual_in_fp32 mamba_ssm_cache_dtype mamba_ssm_dtype
        rms_norm fused_add_norm moe_shared_expert_overlap
    """,
    "initial values, dropout, scales, activation functions: element-wise and fused": """
        activation_dropout activation_function attention_dropout attention_probs_dropout_prob
        attention_softmax_in_fp32 attn_logit_softcapping attn_pdrop classifier_dropout dropout
        embd_pdrop embedding_dropout final_logit_softcapping hidden_act hidden_activation
        hidden_dropout hidden_dropout_prob init_std initializer_range
        layer_norm_elementwise_affine layer_norm_eps layer_norm_epsilon layerdrop
        query_pre_attn_scalar resid_pdrop residual_dropout rms_norm_eps swiglu_alpha
        swiglu_limit activation attention_multiplier embedding_multiplier logit_scale
        logits_scaling residual_multiplier norm_eps norm_epsilon embed_dropout resid_dropout
        mlp_hidden_act mamba_hidden_act time_step_floor time_step_init_scheme time_step_limit
        time_step_max time_step_min time_step_scale rescale_prenorm_residual initializer_factor
        dense_act_fn init_method is_gated_act dropout_rate scale_decoder_outputs
        projector_hidden_act projector_dropout vision_feature_layer projection_dim
        attn_output_multiplier embedding_multiplier_scale output_multiplier_scale max_attn_value
        full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor
        linear_attn_beta_factor mlp_alpha_factor mlp_beta_factor layernorm_full_attention_alpha
        layernorm_full_attention_beta layernorm_linear_attention_alpha
        layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta postnorm
        output_gate_type attn_output_gate
    """,
    "positions by rotation, and lengths that bound no array": """
        default_theta initial_context_length max_sequence_length model_max_length n_ctx
        original_max_position_embeddings partial_rotary_factor rope_interleave rope_interleaved
        rope_local_base_freq rope_parameters rope_scaling rope_theta rope_type rotary_emb_base
        rotary_pct seq_length rotary_dim attn_temperature_tuning attn_scale floor_scale
        use_mrope mrope_section relative_attention_max_distance interpolate_factor
    """,
    "routing: which experts, not how many": """
        aux_loss_alpha ep_size experts_per_token n_group norm_topk_prob routed_scaling_factor
        router_aux_loss_coef router_jitter_noise scoring_func seq_aux topk_group topk_method
        for_llm_compressor moe_renormalize moe_router_activation_func num_expert_group
        use_grouped_topk use_routing_bias
    """,
    "heads of other tasks (BERT, GPT-2)": """
        directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
        pooler_size_per_head pooler_type summary_activation summary_first_dropout
        summary_proj_to_labels summary_type summary_use_proj
    """,
}
_NAMES = frozenset(key for keys in _FREE.values() for key in keys.split())
_STARTS = ("_", "unsloth")  # private notes, and those of a fine-tuning tool


def unknown_keys(data: Mapping[str, Any], read: set[str]) -> list[str]:
    """Keys of a config.json that are given and neither read nor known to cost nothing.

    Parameters
    ----------
    data : the file's mapping.
    read : keys that a reader has asked for.
    """
    return [
        key for key, value in data.items()
        if key not in read and key not in _NAMES and not key.startswith(_STARTS)
        and value not in (None, False, 0, "", [], {})
    ]
