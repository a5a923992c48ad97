"""The edits that add {% generation %} marks to the known chat templates, a tuple for each family of `chat_marks`:
(text of the stock template, which occurs in it once; its replacement)."""

# ruff: noqa: E501 (the lines are those of the stock templates)

# The end of an assistant's turn in the templates of Qwen.
QWEN_END = (
    """        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}""",
    """        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- elif message.role == "tool" %}""",
)

# Reasoning is shown in the turns after the last question. The block is empty for an answer without reasoning: the
# generation prompt of enable_thinking=false writes it, that of enable_thinking=true does not.
QWEN3_TURN = (
    """        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
""",
    """        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- set thinking = '' %}
        {%- set answer = content %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {%- set no_thinking = enable_thinking is defined and enable_thinking is false %}
            {%- if as_generated is defined and as_generated and loop.last and no_thinking %}
                {%- set reasoning_content = '' %}
            {%- endif %}
            {%- set thinking = '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' %}
            {%- set answer = content.lstrip('\\n') %}
            {%- set maybe_prompt = (mask_generation_prompt is not defined or mask_generation_prompt) and enable_thinking is not defined %}
            {%- if not reasoning_content.strip('\\n') and (no_thinking or maybe_prompt) %}
                {{- thinking }}
                {%- set thinking = '' %}
            {%- endif %}
        {%- endif %}
        {%- generation %}
        {{- thinking + answer }}
""",
)

QWEN3_2507_TURN = (
    """        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- if message.tool_calls %}""",
    """        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- generation %}
        {{- content }}
        {%- if message.tool_calls %}""",
)

QWEN2_5 = (
    (
        """        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
""",
        """        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.role == "assistant" %}
            {%- generation %}
            {{- message.content + '<|im_end|>' }}
            {%- endgeneration %}
            {{- '\\n' }}
        {%- else %}
            {{- message.content + '<|im_end|>' + '\\n' }}
        {%- endif %}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- generation %}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
""",
    ),
    (
        """            {{- '\\n<tool_call>\\n{"name": "' }}""",
        """            {{- ('\\n' if message.content or not loop.first else '') + '<tool_call>\\n{"name": "' }}""",
    ),
    QWEN_END,
)

LLAMA3 = (
    (
        """{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>

'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}""",
        """{% set header = '<|start_header_id|>' + message['role'] + '<|end_header_id|>

' %}{% if loop.index0 == 0 %}{% set header = bos_token + header %}{% endif %}{{ header }}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{% else %}{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}""",
    ),
)

LLAMA3_TEXT_TURN = (
    """        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
""",
    """        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {%- if message['role'] == 'assistant' %}
            {%- generation %}
            {{- message['content'] | trim + '<|eot_id|>' }}
            {%- endgeneration %}
        {%- else %}
            {{- message['content'] | trim + '<|eot_id|>' }}
        {%- endif %}
""",
)

LLAMA3_1 = (
    LLAMA3_TEXT_TURN,
    (
        """        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
""",
        """        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {%- generation %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
""",
    ),
    (
        """        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
""",
        """        {%- else  %}
""",
    ),
    (
        """            {{- "<|eot_id|>" }}
        {%- endif %}
""",
        """            {{- "<|eot_id|>" }}
        {%- endif %}
        {%- endgeneration %}
""",
    ),
)

LLAMA3_2 = (
    LLAMA3_TEXT_TURN,
    (
        """        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
""",
        """        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {%- generation %}
""",
    ),
    (
        """        {{- "}" }}
        {{- "<|eot_id|>" }}
""",
        """        {{- "}" }}
        {{- "<|eot_id|>" }}
        {%- endgeneration %}
""",
    ),
)

GEMMA = (
    (
        """{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}""",
        """{{ '<start_of_turn>' + role + '
' }}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim + '<end_of_turn>' }}{% endgeneration %}{{ '
' }}{% else %}{{ message['content'] | trim + '<end_of_turn>
' }}{% endif %}""",
    ),
)

GEMMA3 = (
    (
        """    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
""",
        """    {%- if message['role'] == 'assistant' and message['content'] is string -%}
        {%- generation -%}
        {{ message['content'] | trim + '<end_of_turn>' }}
        {%- endgeneration -%}
    {%- elif message['content'] is string -%}
        {{ message['content'] | trim }}
""",
    ),
    (
        """    {{ '<end_of_turn>
' }}
""",
        """    {{ '
' if message['role'] == 'assistant' and message['content'] is string else '<end_of_turn>
' }}
""",
    ),
)

MISTRAL_V1 = (
    (
        "{{ message['content'] + eos_token + ' ' }}",
        "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{ ' ' }}",
    ),
)

MISTRAL_V2 = (
    (
        "{{ message['content'] + eos_token}}",
        "{% generation %}{{ message['content'] + eos_token}}{% endgeneration %}",
    ),
)

MISTRAL_NEMO = (
    (
        """    {%- elif (message.tool_calls is defined and message.tool_calls is not none) %}
""",
        """    {%- elif (message.tool_calls is defined and message.tool_calls is not none) %}
        {%- generation %}
""",
    ),
    (
        """        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- message["content"] + eos_token}}
""",
        """        {%- endfor %}
        {%- endgeneration %}
    {%- elif message["role"] == "assistant" %}
        {%- generation %}
        {{- message["content"] + eos_token}}
        {%- endgeneration %}
""",
    ),
)

SMOLLM2 = (
    (
        """{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}""",
        """{{'<|im_start|>' + message['role'] + '
'}}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '
' }}{% else %}{{ message['content'] + '<|im_end|>' + '
'}}{% endif %}""",
    ),
)

# Without thinking the generation prompt holds the empty block, in every turn.
SMOLLM3 = (
    (
        """            {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- endif -%}
""",
        """            {{- "<|im_start|>assistant\\n" -}}
        {%- else -%}
            {{- "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" -}}
        {%- endif -%}
        {%- generation -%}
        {{- content.lstrip("\\n") + "<|im_end|>" -}}
        {%- endgeneration -%}
        {{- "\\n" -}}
""",
    ),
)

# The stock template drops the reasoning of every turn, although the generation prompt ends with <think>. As generated,
# the last turn continues this prompt: reasoning, </think>, answer. Without reasoning the block is closed at once.
R1_GENERATED = (
    "{%- if message['reasoning_content'] is string and message['reasoning_content'].strip() -%}"
    "{%- set content = message['reasoning_content'].strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') -%}"
    "{%- elif '</think>' in content -%}{%- set content = content.split('<think>', 1)[-1].lstrip('\\n') -%}"
    "{%- elif mask_generation_prompt is not defined or mask_generation_prompt -%}{{- '\\n</think>\\n\\n' -}}"
    "{%- else -%}{%- set content = '\\n</think>\\n\\n' + content -%}{%- endif -%}"
)
R1_WITHOUT_THINKING = (
    "{%- if not enable_thinking -%}{{- '</think>' -}}{%- set content = content.split('</think>')[-1] -%}"
    "{%- else -%}" + R1_GENERATED + "{%- endif -%}"
)


def _r1_answer(drop, generated):
    """`drop` is the stock template's text that drops the reasoning, before the answer is written."""
    condition = "{%- if '</think>' in content"
    assert drop.replace("{% if", "{%- if").count(condition) == 1
    return (
        drop + "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}",
        "{{- '<｜Assistant｜>' -}}{%- if as_generated is defined and as_generated and loop.last and not message['tool_calls'] -%}{{- '<think>\\n' -}}"
        + generated
        + "{%- else -%}"
        + drop
        + "{%- endif -%}{%- generation -%}{{- content + '<｜end▁of▁sentence｜>' -}}{%- endgeneration -%}",
    )


R1_DROP = "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
R1_DROP_IN_LINES = """
      {%- if '</think>' in content -%}
        {%- set content = content.split('</think>')[-1] -%}
      {%- endif -%}"""
R1_AFTER_TOOLS = (
    "{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}",
    "{{'<｜tool▁outputs▁end｜>'}}{%- generation -%}{{message['content'] + '<｜end▁of▁sentence｜>'}}{%- endgeneration -%}",
)
R1_CALLS_BEGIN = (
    "{%- if message['tool_calls'] and not ns.is_first -%}{{- '<｜Assistant｜>' -}}{%- endif -%}{%- generation -%}"
)
R1_CONTENT = "{%- if message['role'] == 'assistant' and message['content'] is not none"

R1 = (
    ("{%- for tool in message['tool_calls']%}", R1_CALLS_BEGIN + "{%- for tool in message['tool_calls']%}"),
    ("{{'<｜Assistant｜><｜tool▁calls▁begin｜>", "{{'<｜tool▁calls▁begin｜>"),
    (
        "{%- endfor %}{%- endif %}" + R1_CONTENT,
        "{%- endfor %}{%- endgeneration -%}{%- endif %}" + R1_CONTENT,
    ),
    R1_AFTER_TOOLS,
    _r1_answer(R1_DROP, R1_GENERATED),
)

# The two in llama.cpp, which are set in lines.
R1_LLAMA_CPP = (
    ("{%- for tool in message['tool_calls']-%}", R1_CALLS_BEGIN + "{%- for tool in message['tool_calls']-%}"),
    ("{{'<｜Assistant｜><｜tool▁calls▁begin｜>", "{{'<｜tool▁calls▁begin｜>"),
    (
        "    {%- endfor -%}\n  {%- endif -%}\n  " + R1_CONTENT,
        "    {%- endfor -%}\n  {%- endgeneration -%}{%- endif -%}\n  " + R1_CONTENT,
    ),
    R1_AFTER_TOOLS,
    _r1_answer(R1_DROP_IN_LINES, R1_GENERATED),
)

R1_LLAMA_CPP_ENABLE_THINKING = (
    *R1_LLAMA_CPP[:2],
    (
        "    {{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}\n",
        "    {{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}{%- endgeneration -%}\n",
    ),
    R1_AFTER_TOOLS,
    _r1_answer(R1_DROP_IN_LINES, R1_WITHOUT_THINKING),
)
