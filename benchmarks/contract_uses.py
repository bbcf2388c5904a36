"""What ``src/oblr/rollout`` uses of vLLM, gathered from its syntax trees; ``contract.yaml`` says where vLLM has it.

A use is a string:

======================  ================================================================================
``vllm.a.b.Name``       imported, or run as a module
``LLM(dtype)``          an argument of something of vLLM's, by the name that our code has for that thing
``sample.token_ids``    an attribute, a key of a dict, or a field of a reply
``POST /a/b``           a route, whose fields are ``/a/b(field)`` when sent and ``/a/b.field`` when received
``--flag``              of the server's command line
``env.VLLM_NAME``       an environment variable
``"word"``              a value that vLLM is given, or that one of its values is compared with
======================  ================================================================================

Of vLLM are names imported from it, what is annotated with one of them or with ``Any``, and what is made of either.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

#: Rooms of rollout/ that know engines only by ``engine.py``.
APART = {
    *("__init__.py", "datamodule.py", "deadline.py", "engine.py", "hf.py"),
    *("guard.py", "proof.py", "replies.py", "waits.py"),
}
ROUTE = re.compile(r"/[a-z_]\w*(/\w+)*(\.json)?")
FORMS = {"env.{}": r"VLLM_[A-Z0-9_]+", "{}": r"--[a-z][a-z-]*|vllm(\.\w+)+"}


def uses(folder: Path) -> dict[str, set[str]]:
    """Every use with the files that have it."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.glob("*.py")):
        if path.name not in APART:
            for use in Module(ast.parse(path.read_text())).uses():
                found.setdefault(use, set()).add(path.name)
    return found


class Module:
    """One file."""

    def __init__(self, tree: ast.Module):
        self.tree = tree
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.imported: dict[str, str] = {}
        self.foreign: set[str] = set()  # variables and attributes
        self.constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vllm":
                self.imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        while self._spread():
            pass

    def _spread(self) -> bool:
        """Mark what is made of foreign things as foreign; whether there was something new."""
        before = len(self.foreign)
        for node in ast.walk(self.tree):
            match node:
                case ast.arg(arg=name, annotation=annotation) if self.is_foreign_type(annotation):
                    self.foreign.add(name)
                case ast.AnnAssign(target=target, annotation=annotation) if self.is_foreign_type(annotation):
                    self._mark(target)
                case ast.Assign(targets=targets, value=value) if self.is_foreign(value):
                    for target in targets:
                        self._mark(target)
                case ast.comprehension(target=target, iter=value) | ast.For(target=target, iter=value):
                    if self.is_foreign(value):
                        self._mark(target)
        return len(self.foreign) > before

    def _mark(self, target: ast.expr) -> None:
        match target:
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
                self.foreign.add(name)
            case ast.Tuple(elts=elements):
                for element in elements:
                    self._mark(element)

    def is_foreign_type(self, annotation: ast.expr | None) -> bool:
        names = {part.id for part in ast.walk(annotation or ast.Pass()) if isinstance(part, ast.Name)}
        return names == {"Any"} or bool(names & self.imported.keys())

    def is_foreign(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self.foreign or name in self.imported
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return name in self.foreign
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                return self.is_foreign(value)
            case ast.Call(func=function, args=arguments):
                own = isinstance(function, ast.Name) and function.id in {"list", "zip", "dict", "sorted", "iter"}
                return self.is_foreign(function) or (own and any(map(self.is_foreign, arguments)))
            case ast.Tuple(elts=parts) | ast.BoolOp(values=parts):
                return any(map(self.is_foreign, parts))
        return False

    def uses(self) -> Iterator[str]:
        yield from self.imported.values()
        for node in ast.walk(self.tree):
            match node:
                case ast.Attribute(value=value, attr=name) if self.is_foreign(value):
                    yield f"{self.name(value)}.{name}"
                case ast.Call():
                    yield from self._call(node)
                case ast.Subscript(value=value, slice=ast.Constant(value=str(key))) if not list(self._text(key)):
                    yield f"{self.name(value)}.{key}"
                case ast.Dict():
                    yield from self._dict(node)
                case ast.Compare():
                    yield from self._words(node)
                case ast.Assign(targets=[ast.Attribute(attr="arguments")], value=value):
                    yield from self._words(value)
                case ast.Constant(value=str(text)):
                    yield from self._text(text)
                case ast.ClassDef():
                    yield from self._class(node)

    def name(self, node: ast.expr | None) -> str:
        """What our code calls a thing."""
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name.strip("_")
            case ast.Subscript(slice=ast.Constant(value=str(key))):
                return key
            case ast.Subscript(value=value):
                return self.name(value)
            case ast.Call(func=function):
                route = self.route(node)
                if route:
                    return route[1]
                return self.key(node) or self.name(function)
            case ast.BoolOp(values=[first, *_]) | ast.BinOp(left=first):
                return self.name(first)
        return "?"

    @staticmethod
    def key(node: ast.Call) -> str | None:
        """``things.get("key")``."""
        match node:
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
                return None if key.startswith("/") else key
        return None

    def route(self, node: ast.Call) -> tuple[str, str, list[str]] | None:
        """Method, path and names of the query of ``client.get("/a?b=c")``."""
        match node:
            case ast.Call(func=ast.Attribute(attr="get" | "post" as method), args=[first, *_]):
                place = self.constants.get(first.id) if isinstance(first, ast.Name) else getattr(first, "value", None)
                if isinstance(place, str) and place.startswith("/"):
                    path, _, query = place.partition("?")
                    return method.upper(), path, re.findall(r"(\w+)=", query)
        return None

    def _call(self, node: ast.Call) -> Iterator[str]:
        keywords = [keyword.arg for keyword in node.keywords if keyword.arg]
        if route := self.route(node):
            method, path, query = route
            yield f"{method} {path}"
            sent = [*query, *(keyword for keyword in keywords if method == "POST")]
            yield from (f"{path}({field})" for field in sent)
        elif self.is_foreign(node.func):
            owner = self.name(node.func)
            yield from (f"{owner}({keyword})" for keyword in keywords)
            yield from self._words(*node.args, *(keyword.value for keyword in node.keywords))
        elif key := self.key(node):
            assert isinstance(node.func, ast.Attribute)
            yield f"{self.name(node.func.value)}.{key}"

    def _dict(self, node: ast.Dict) -> Iterator[str]:
        owner = self._purpose(node)
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and not key.value.startswith("VLLM_"):
                yield f"{owner}.{key.value}"
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield f'"{value.value}"'

    def _purpose(self, node: ast.AST) -> str:
        """The argument, variable or function whose value an expression becomes part of."""
        while True:
            node = self.parents[node]
            match node:
                case ast.keyword(arg=str(name)):
                    return name
                case ast.Assign(targets=[target]) | ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                    return self.name(target)
                case ast.FunctionDef(name=name):
                    return name.strip("_")
                case ast.Module():
                    return "?"

    def _words(self, *nodes: ast.AST) -> Iterator[str]:
        for node in nodes:
            for part in ast.walk(node):
                inside = self.parents[part]
                if isinstance(inside, ast.JoinedStr | ast.Subscript | ast.Dict):
                    continue  # of a message, or said by others
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and not list(self._text(part.value)):
                    yield f'"{part.value}"'

    def _text(self, text: str) -> Iterator[str]:
        for form, pattern in FORMS.items():
            if re.fullmatch(pattern, text):
                yield form.format(text)
        if ROUTE.fullmatch(text):
            yield text

    def _class(self, node: ast.ClassDef) -> Iterator[str]:
        """What a class has from elsewhere: attributes that it never sets, and what it overrides of a base of vLLM's."""
        own, loaded, overridden = set(), set(), set()
        for part in ast.walk(node):
            match part:
                case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                    own.add(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Load()):
                    loaded.add(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    declared = isinstance(self.parents[part], ast.AnnAssign) and self.parents[part].value is None
                    own |= set() if declared else {name}
        for part in node.body:
            match part:
                case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                    overridden.add(name)
                case ast.Assign(targets=[ast.Tuple(elts=elements)]):
                    overridden |= {self.name(element) for element in elements}
        bases = [self.name(base) for base in node.bases if self.is_foreign(base)]
        yield from (f"{[*bases, node.name][0]}.{name}" for name in loaded - own - overridden)
        yield from (f"{base}.{name}" for base in bases for name in overridden)
