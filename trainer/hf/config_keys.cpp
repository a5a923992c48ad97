#include "trainer/hf/config_keys.h"

namespace distill::hf {

const absl::flat_hash_set<std::string>& ignored_keys() {
  // The keys that transformers 4 and 5 write for these families (PretrainedConfig, the four configuration classes,
  // GenerationConfig), and those that other programs add.
  static const absl::flat_hash_set<std::string> keys{
      // identity
      "architectures", "model_type", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash",
      "_auto_class", "unsloth_version", "unsloth_fixed", "is_llama_config", "transformers.js_config",
      "trust_remote_code",
      // tokens
      "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id",
      "mask_token_id", "decoder_start_token_id", "tokenizer_class", "prefix", "model_max_length", "max_sequence_length",
      "tokenizer_model_max_length", "tokenizer_padding_side",
      // initial values of training, and losses that are computed elsewhere
      "initializer_range", "loss_type", "tf_legacy_loss", "output_router_logits", "router_aux_loss_coef",
      // windows: read_layers; transformers writes the last one beside layer_types, and does not read it
      "max_window_layers", "layer_types", "_sliding_window_pattern",
      // heads for classification
      "id2label", "label2id", "num_labels", "problem_type", "task_specific_params", "finetuning_task",
      "classifier_dropout", "classifier_activation",
      // what a forward call returns, and how it is computed
      "output_attentions", "_output_attentions", "output_hidden_states", "output_scores", "output_logits",
      "return_dict", "use_return_dict", "return_dict_in_generate", "keys_to_ignore_at_inference", "use_cache",
      "cache_implementation", "torchscript", "gradient_checkpointing", "chunk_size_feed_forward", "num_logits_to_keep",
      "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
      "experts_implementation", "_experts_implementation", "_experts_implementation_internal", "_flash_attn_2_enabled",
      "use_flash_attention_2", "use_flash_attn", "base_model_tp_plan", "base_model_pp_plan", "base_model_ep_plan",
      "base_model_fsdp_plan", "distributed_config", "device_map",
      // dtypes: read_dtype
      "torch_dtype", "dtype", "use_bfloat16", "_pre_quantization_dtype",
      // generation
      "_from_model_config", "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight",
      "assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens", "cache_config", "compile_config", "constraints",
      "continuous_batching_config", "disable_compile", "diversity_penalty", "do_sample", "dola_layers",
      "early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff",
      "exponential_decay_length_penalty", "force_words_ids", "forced_bos_token_id", "forced_decoder_ids",
      "forced_eos_token_id", "generation_kwargs", "guidance_scale", "is_assistant", "length_penalty", "low_memory",
      "max_cache_len", "max_length", "max_matching_ngram_size", "max_new_tokens", "max_time", "min_length",
      "min_new_tokens", "min_p", "no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
      "num_beam_groups", "num_beams", "num_return_sequences", "penalty_alpha", "prefill_chunk_size",
      "prompt_lookup_num_tokens", "remove_invalid_values", "renormalize_logits", "repetition_penalty", "sequence_bias",
      "speculation_type", "stop_strings", "suppress_tokens", "target_lookbehind", "temperature", "token_healing",
      "top_h", "top_k", "top_p", "typical_p", "use_mtp", "watermarking_config"};
  return keys;
}

const std::map<std::string, nlohmann::ordered_json>& neutral_values() {
  static const std::map<std::string, nlohmann::ordered_json> values{
      {"hidden_act", "silu"},
      {"mlp_bias", false},
      {"attention_bias", false},
      {"o_bias", false},
      {"attention_dropout", 0},
      {"hidden_dropout", 0},
      {"resid_pdrop", 0},
      {"embd_pdrop", 0},
      {"lm_head_bias", false},
      {"full_attn_mod", 1},
      {"interpolate_factor", 1},
      {"attn_logit_softcapping", nullptr},
      {"residual_dropout", 0},
      {"embedding_dropout", 0},
      {"pretraining_tp", 1},
      {"partial_rotary_factor", 1},
      {"rope_interleaved", false},
      {"sliding_window_pattern", 0},
      {"is_encoder_decoder", false},
      {"is_decoder", false},
      {"add_cross_attention", false},
      {"cross_attention_hidden_size", nullptr},
      {"tie_encoder_decoder", false},
      {"embedding_multiplier", 1},
      {"residual_multiplier", 1},
      {"logits_scaling", 1},
      {"logit_scale", 1},
      {"use_mrope", false},
      {"num_nextn_predict_layers", 0},
      {"attn_output_gate", false},
      {"pruned_heads", nlohmann::ordered_json::object()}};
  return values;
}

void refuse_other_keys(KeyReader& keys, const absl::flat_hash_set<std::string>& ignored) {
  if (const auto* quantization = keys.take("quantization_config")) {
    keys.complain(
        "quantization_config: quantised weights are not supported (", KeyReader::text(*quantization),
        "); save the model in bf16, fp16 or fp32 first");
  }
  for (const auto& [key, value] : keys.json().items()) {
    if (keys.is_known(key) || ignored_keys().contains(key) || value.is_null()) {
      continue;
    }
    const auto neutral = neutral_values().find(key);
    if (neutral == neutral_values().end()) {
      if (!ignored.contains(key)) {
        keys.complain(
            key, ": unknown key (value ", KeyReader::text(value),
            "), which may change the mathematics; if it does not: student.ignore_config_keys (or "
            "teacher.ignore_config_keys): [",
            key, "]");
      }
    } else if (value != neutral->second) {
      keys.complain(key, ": only ", neutral->second.dump(), " is supported, found ", KeyReader::text(value));
    }
  }
}

} // namespace distill::hf
