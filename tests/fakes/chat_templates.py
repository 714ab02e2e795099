# ruff: noqa: E501 (templates keep the long lines of their models)
"""Chat templates in the style of well-known models, for the tests of this folder."""

from __future__ import annotations

LLAMA3_STYLE = """{{- bos_token }}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not date_string is defined %}{% set date_string = "26 Jul 2024" %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN3_STYLE = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL_STYLE = """{{ bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {%- generation %}{{- ' ' + message['content'] + eos_token }}{%- endgeneration %}
    {%- else %}
        {%- continue %}
    {%- endif %}
{%- endfor %}
"""

PARTS_STYLE = """{% for message in messages %}
{{ '<' + message['role'] + '>' }}
{% for part in message['content'] %}
{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}{{ raise_exception('no ' + part['type']) }}{% endif %}
{% endfor %}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}"""

MACRO_STYLE = """{% macro show(body) %}{% for part in body %}{{ part.text }}{% endfor %}{% endmacro %}
{% for m in messages %}{{ m.role }}: {{ show(m.content) }}
{% endfor %}"""

FEATURES_STYLE = """{%- macro show(value, depth=0) -%}
  {%- if value is mapping -%}{ {%- for k, v in value|dictsort -%}{{ k }}:{{ show(v, depth + 1) }}{{ ',' if not loop.last }}{%- endfor -%} }
  {%- elif value is sequence and value is not string -%}[{%- for v in value -%}{{ show(v, depth + 1) }};{%- endfor -%}]
  {%- else -%}{{ value }}@{{ depth }}{%- endif -%}
{%- endmacro -%}
{%- macro boxed(title) -%}<{{ title }}>{{ caller(title|length) }}</{{ title }}>{%- endmacro -%}
{%- set ns = namespace(count=0, last='') -%}
{%- for m in messages if m.role != 'tool' -%}
{%- if loop.index > 6 -%}{%- break -%}{%- endif -%}
{%- set ns.count = ns.count + 1 -%}
{%- set line %}{{ loop.cycle('odd', 'even') }} {{ m.role|upper }}: {{ m.content|trim }} {{ loop.previtem.role if loop.previtem }}{% endset -%}
{%- set ns.last = ns.last ~ '|' ~ line -%}
{{ line }}
{% call(size) boxed(m.role) %}{{ size }} {{ m|length }}{% endcall %}
{% filter replace('a', 'A') %}{{ m.content }}{% endfilter %}
{%- else -%}nothing{%- endfor %}
{%- for t in (tools or []) recursive %}{{ t.function.name }}{{ loop(t.children) if t.children }}{% endfor %}
{{ show(tools or {'none': [1, 2.5, true, none]}) }} {{ ns.count }} {{ ns.last }}
{{ messages|map(attribute='role')|join('-') }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }}
{{ messages[-1]['content'][:3] }} {{ messages|tojson(indent=2) }} {{ ['x', 'y'] | join(', ') }}
{%- with a = 3 %}{{ a * 2 }}{{ a ** 2 }}{{ 'ab' * a }}{{ '%05.1f' % a }}{% endwith %}
{{- raise_exception('done') if false }} {{ undefined_thing }} {{ undefined_thing is defined }}
{#- a comment -#}
{% if add_generation_prompt %}go{% endif %}
"""

AGENT_STYLE = """{%- if documents %}{% for d in documents %}[{{ loop.index0 }}] {{ d.title }}: {{ d['text'] }}
{% endfor %}{% endif %}
{%- set rest = messages[1:] if messages[0].role in ['system', 'developer'] else messages %}
{%- if messages[0].role in ['system', 'developer'] %}{{ messages[0].role.title() }}: {{ messages[0].content.strip() }}
{% endif %}
{%- if tools is not none and tools|length > 0 %}{% for t in tools|map(attribute='function') %}{{ t|tojson(indent=2, ensure_ascii=true, sort_keys=true) }}
{% for name, p in t.parameters.get('properties', {}).items() %}{{ name }}={{ p.type | upper if p.type is string else p.type|join('|') }};{% endfor %}
{% endfor %}{% endif %}
{%- set ns = namespace(last=-1, open=false) %}
{%- for m in rest[::-1] %}{% if m.role == 'user' and ns.last < 0 %}{% set ns.last = rest|length - 1 - loop.index0 %}{% endif %}{% endfor %}
{%- for m in rest %}
{%- if m.role == 'tool' %}<r>{{ m.content if m.content is string else m.content|tojson }}</r>{% continue %}{% endif %}
{{- '<|' ~ m['role'] ~ '|>' }}
{%- if m.role == 'assistant' %}
{%- generation %}
{%- if m.reasoning_content is defined and m.reasoning_content is string and loop.index0 > ns.last %}<think>{{ m.reasoning_content.strip('\\n') }}</think>{% endif %}
{%- if m.content is not none %}{% set text = m.content.split('</think>')[-1].lstrip('\\n') if '</think>' in m.content else m.content %}{{ text.rstrip() }}{% else %}(no text){% endif %}
{%- for call in m.tool_calls or [] %}{% if call.function is defined %}{% set call = call.function %}{% endif %}
<call>{{ call.name }}{% for k, v in call.arguments|items %}<{{ k }}>{{ v if v is string else v|tojson }}{% if v is boolean or v is number %}#{% elif v is iterable and v is not mapping %}[{{ v|length }}]{% endif %}{% endfor %}</call>{% endfor %}
{%- endgeneration %}
{%- else %}{{ m.content }}{% endif %}
{% endfor %}
{%- if rest|selectattr('role', 'equalto', 'user')|list|length > 9 %}{{ raise_exception('too long') }}{% endif %}
{%- if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}
{%- if add_generation_prompt %}<|assistant|>{{ '<think></think>' if enable_thinking is defined and not enable_thinking else '' }}{% endif %}
"""
"""What the templates of agents' models call: tools and their results over several turns, documents,
reasoning of the last turn alone, answers without content."""
