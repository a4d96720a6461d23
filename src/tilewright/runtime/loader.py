"""Loads relocatable ELF objects without a linker.

Only what our code generator emits is understood: ELF64 for x86-64, little endian, allocated sections of plain bytes or
zeros, and a handful of relocations. Everything else is refused, and so is anything that points outside of the file or
of its section: object bytes are hostile data until they run. (Once they run they are native code, and nothing here can
make that safe.)

The objects of a program are placed in one mapping: executable sections first, then read-only ones with the global
offset table, then writable ones, each group on pages of its own. It is filled while writable and then protected; no
page is ever writable and executable at the same time.
"""

import ctypes
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, unique

from tilewright.runtime.memory import round_up
from tilewright.support.errors import UserError

_MAX_BYTES = 1 << 30  # of a loaded program: relocations reach 2 GiB
_MAX_ALIGN = 4096

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")

_IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little endian, version 1
_ET_REL, _EM_X86_64 = 1, 62
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_STRTAB, _SHT_RELA, _SHT_NOTE, _SHT_NOBITS, _SHT_REL = 1, 2, 3, 4, 7, 8, 9
_SHT_X86_64_UNWIND = 0x70000001
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR, _SHF_TLS = 1, 2, 4, 0x400
_SHN_UNDEF, _SHN_LORESERVE, _SHN_ABS = 0, 0xFF00, 0xFFF1
_STB_LOCAL, _STB_GLOBAL, _STB_WEAK = 0, 1, 2
_STT_MAX = 4  # notype, object, function, section, file; neither common, thread-local nor indirect

_R_NONE, _R_64, _R_PC32, _R_PLT32, _R_GOTPCREL, _R_32, _R_32S, _R_PC64 = 0, 1, 2, 4, 9, 10, 11, 24
_R_GOTPCRELX, _R_REX_GOTPCRELX = 41, 42
_VIA_GOT = frozenset({_R_GOTPCREL, _R_GOTPCRELX, _R_REX_GOTPCRELX})
_RELATIVE = frozenset({_R_PC32, _R_PLT32, _R_PC64}) | _VIA_GOT
# how each relocation is stored: its struct format says width and sign
_STORE: dict[int, struct.Struct] = {
    _R_64: struct.Struct("<Q"),
    _R_PC64: struct.Struct("<q"),
    _R_32: struct.Struct("<I"),
    _R_32S: struct.Struct("<i"),
    _R_PC32: struct.Struct("<i"),
    _R_PLT32: struct.Struct("<i"),
    _R_GOTPCREL: struct.Struct("<i"),
    _R_GOTPCRELX: struct.Struct("<i"),
    _R_REX_GOTPCRELX: struct.Struct("<i"),
}


@unique
class _Group(IntEnum):
    CODE = 0
    READ_ONLY = 1
    WRITABLE = 2


_PROTECTION = {
    _Group.CODE: mmap.PROT_READ | mmap.PROT_EXEC,
    _Group.READ_ONLY: mmap.PROT_READ,
    _Group.WRITABLE: mmap.PROT_READ | mmap.PROT_WRITE,
}


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    flags: int
    offset: int  # in the file
    size: int
    link: int
    info: int
    align: int

    @property
    def is_loaded(self) -> bool:
        # unwind tables are left out: nobody unwinds through kernels
        return bool(self.flags & _SHF_ALLOC) and self.kind in (_SHT_PROGBITS, _SHT_NOBITS)

    @property
    def group(self) -> _Group:
        if self.flags & _SHF_EXECINSTR:
            return _Group.CODE
        return _Group.WRITABLE if self.flags & _SHF_WRITE else _Group.READ_ONLY


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    binding: int
    section: int
    value: int


@dataclass(frozen=True, slots=True)
class _Relocation:
    section: int  # the one it changes
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(slots=True, eq=False)
class _Object:
    """A parsed and bounds-checked file; `places` are the offsets of its sections in the mapping."""

    name: str
    data: bytes
    sections: list[_Section]
    symbols: list[_Symbol]
    relocations: list[_Relocation]
    places: dict[int, int] = field(default_factory=dict[int, int])


def _bad(name: str, why: str) -> UserError:
    return UserError(f"cannot load object code: {why}", where=name, hint="compile the program again")


def _parse(name: str, data: bytes) -> _Object:
    if len(data) < _EHDR.size:
        raise _bad(name, f"{len(data)} bytes are too few for an ELF header")
    header = _EHDR.unpack_from(data)
    ident, kind, machine, shoff, shentsize, shnum = (*header[:3], header[6], header[11], header[12])
    if ident[:7] != _IDENT or kind != _ET_REL:
        raise _bad(name, "it is not a relocatable ELF64 file")
    if machine != _EM_X86_64:
        raise _bad(name, f"it is code for ELF machine {machine}, not x86-64")
    if shentsize != _SHDR.size or shnum == 0 or shoff > len(data) or shnum * _SHDR.size > len(data) - shoff:
        raise _bad(name, "its section headers are outside of the file")
    sections = [_section(name, data, shoff + i * _SHDR.size) for i in range(shnum)]
    tables = [s for s in sections if s.kind == _SHT_SYMTAB]
    if len(tables) != 1:
        raise _bad(name, f"it has {len(tables)} symbol tables, not one")
    parsed = _Object(name, data, sections, _symbols(name, data, sections, tables[0]), [])
    for section in sections:
        if section.kind in (_SHT_RELA, _SHT_REL):
            _read_relocations(parsed, section)
    return parsed


def _section(name: str, data: bytes, at: int) -> _Section:
    _, kind, flags, _, offset, size, link, info, align, _ = _SHDR.unpack_from(data, at)
    if kind != _SHT_NOBITS and (offset > len(data) or size > len(data) - offset):
        raise _bad(name, "a section is outside of the file")
    section = _Section(kind, flags, offset, size, link, info, max(align, 1))
    if not flags & _SHF_ALLOC or kind in (_SHT_X86_64_UNWIND, _SHT_NOTE):
        return section
    if not section.is_loaded or flags & _SHF_TLS:
        raise _bad(name, f"a section of type {kind:#x} with flags {flags:#x} is of no kind we emit")
    if flags & _SHF_WRITE and flags & _SHF_EXECINSTR:
        raise _bad(name, "a section is both writable and executable")
    if section.align > _MAX_ALIGN or section.align & (section.align - 1) or size > _MAX_BYTES:
        raise _bad(name, f"a section of {size} bytes aligned to {align} is out of range")
    return section


def _symbols(name: str, data: bytes, sections: list[_Section], table: _Section) -> list[_Symbol]:
    if table.link >= len(sections) or sections[table.link].kind != _SHT_STRTAB or table.size % _SYM.size:
        raise _bad(name, "its symbol table is damaged")
    strings = data[sections[table.link].offset :][: sections[table.link].size]
    symbols: list[_Symbol] = []
    at: int
    info: int
    index: int
    value: int
    for at, info, _, index, value, _ in _SYM.iter_unpack(data[table.offset : table.offset + table.size]):
        end = strings.find(b"\0", at)
        if at > len(strings) or (end < 0 and strings):
            raise _bad(name, "a symbol's name is outside of the string table")
        text = strings[at:end].decode("utf-8", "replace")
        binding, sort = info >> 4, info & 15
        if sort > _STT_MAX or binding > _STB_WEAK:
            raise _bad(name, f"symbol {text!r} is of no kind we emit (info {info:#x})")
        if index not in (_SHN_UNDEF, _SHN_ABS):
            if index >= min(len(sections), _SHN_LORESERVE):
                raise _bad(name, f"symbol {text!r} is in section {index}, which does not exist")
            if value > sections[index].size:
                raise _bad(name, f"symbol {text!r} is outside of its section")
        symbols.append(_Symbol(text, binding, index, value))
    return symbols


def _read_relocations(obj: _Object, table: _Section) -> None:
    name = obj.name
    if table.info >= len(obj.sections):
        raise _bad(name, "relocations of a section that does not exist")
    target = obj.sections[table.info]
    if not target.is_loaded:
        return
    if table.kind == _SHT_REL or table.size % _RELA.size or target.kind == _SHT_NOBITS:
        raise _bad(name, "a relocation table is damaged")
    for offset, info, addend in _RELA.iter_unpack(obj.data[table.offset : table.offset + table.size]):
        kind, symbol = info & 0xFFFFFFFF, info >> 32
        if kind == _R_NONE:
            continue
        store = _STORE.get(kind)
        if store is None:
            raise _bad(name, f"relocation type {kind} is of no kind we emit")
        if symbol >= len(obj.symbols) or offset > target.size or store.size > target.size - offset:
            raise _bad(name, "a relocation is outside of its section or symbol table")
        obj.relocations.append(_Relocation(table.info, offset, kind, symbol, addend))


class Code:
    """The loaded objects of a program. The memory is unmapped when the last reference to this goes."""

    def __init__(self, objects: Sequence[bytes], *, name: str = "object") -> None:
        parsed = [_parse(f"{name} {i}", data) for i, data in enumerate(objects)]
        globals_ = _defined(parsed)
        _check_undefined(parsed, globals_)
        ends, got_at, got = _lay_out(parsed)
        size = max(ends[_Group.WRITABLE], mmap.PAGESIZE)
        self._mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._addresses = {name: _value(obj, symbol, base) for name, (obj, symbol) in globals_.items()}
        _fill(self._mapping, parsed, ends[_Group.CODE])
        _relocate(self._mapping, parsed, base, self._addresses, got_at, got)
        _protect(base, ends)

    def address(self, symbol: str) -> int:
        """Where a global symbol is."""
        found = self._addresses.get(symbol)
        if found is None:
            raise UserError(f"the object code does not define {symbol!r}", hint="compile the program again")
        return found

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._addresses


def _defined(objects: list[_Object]) -> dict[str, tuple[_Object, _Symbol]]:
    """Global symbols of all objects; a strong definition wins over weak ones."""
    table: dict[str, tuple[_Object, _Symbol]] = {}
    for obj in objects:
        for symbol in obj.symbols:
            if symbol.binding == _STB_LOCAL or symbol.section == _SHN_UNDEF:
                continue
            other = table.get(symbol.name)
            if other is not None and other[1].binding == symbol.binding == _STB_GLOBAL:
                raise _bad(obj.name, f"symbol {symbol.name!r} is also defined in {other[0].name}")
            if other is None or other[1].binding == _STB_WEAK:
                table[symbol.name] = (obj, symbol)
    return table


def _check_undefined(objects: list[_Object], globals_: dict[str, tuple[_Object, _Symbol]]) -> None:
    missing: dict[str, str] = {}
    for obj in objects:
        for relocation in obj.relocations:
            symbol = obj.symbols[relocation.symbol]
            if symbol.section == _SHN_UNDEF and symbol.name not in globals_:
                missing.setdefault(symbol.name, obj.name)
    if missing:
        names = ", ".join(f"{symbol!r} ({obj})" for symbol, obj in sorted(missing.items()))
        raise UserError(
            f"object code uses symbols that nobody defines: {names}",
            hint="compiled programs are self-contained; kernels may call only functions of the same program",
        )


def _lay_out(objects: list[_Object]) -> tuple[dict[_Group, int], int, dict[tuple[int, int], int]]:
    """Place every loaded section. Returns the end of each group, the place of the offset table, and its entries:
    (object, symbol) to index.
    """
    got: dict[tuple[int, int], int] = {}
    for i, obj in enumerate(objects):
        for relocation in obj.relocations:
            if relocation.kind in _VIA_GOT:
                got.setdefault((i, relocation.symbol), len(got))
    at, got_at = 0, 0
    ends: dict[_Group, int] = {}
    for group in _Group:
        for obj in objects:
            for i, section in enumerate(obj.sections):
                if section.is_loaded and section.group is group:
                    at = round_up(at, section.align)
                    obj.places[i] = at
                    at += section.size
        if group is _Group.READ_ONLY:
            got_at = round_up(at, 8)
            at = got_at + 8 * len(got)
        ends[group] = at = round_up(at, mmap.PAGESIZE)
        if at > _MAX_BYTES:
            raise _bad(objects[0].name, f"the program is larger than {_MAX_BYTES >> 20} MiB")
    return ends, got_at, got


def _value(obj: _Object, symbol: _Symbol, base: int) -> int:
    if symbol.section == _SHN_ABS:
        return symbol.value
    place = obj.places.get(symbol.section)
    if place is None:
        raise _bad(obj.name, f"symbol {symbol.name!r} is in a section that is not loaded")
    return base + place + symbol.value


def _fill(memory: mmap.mmap, objects: list[_Object], code_end: int) -> None:
    memory[:code_end] = b"\xcc" * code_end  # gaps between functions trap
    for obj in objects:
        for i, place in obj.places.items():
            section = obj.sections[i]
            if section.kind != _SHT_NOBITS:
                memory[place : place + section.size] = obj.data[
                    section.offset : section.offset + section.size
                ]


def _relocate(
    memory: mmap.mmap,
    objects: list[_Object],
    base: int,
    globals_: dict[str, int],
    got_at: int,
    got: dict[tuple[int, int], int],
) -> None:
    for i, obj in enumerate(objects):
        for r in obj.relocations:
            symbol = obj.symbols[r.symbol]
            is_local = symbol.binding == _STB_LOCAL and symbol.section != _SHN_UNDEF
            value = _value(obj, symbol, base) if is_local else globals_[symbol.name]
            place = obj.places[r.section] + r.offset
            if r.kind in _VIA_GOT:
                entry = got_at + 8 * got[i, r.symbol]
                struct.pack_into("<Q", memory, entry, value)
                value = base + entry
            value += r.addend
            if r.kind in _RELATIVE:
                value -= base + place
            try:
                _STORE[r.kind].pack_into(memory, place, value)
            except struct.error:
                raise _bad(
                    obj.name, f"a relocation (type {r.kind}) to {symbol.name!r} is out of reach"
                ) from None


def _protect(base: int, ends: dict[_Group, int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    start = 0
    for group, end in ends.items():
        if end > start and libc.mprotect(base + start, end - start, _PROTECTION[group]) != 0:
            raise UserError(
                f"the system does not let us map code executable (errno {ctypes.get_errno()})",
                hint="compiled programs are native code; a hardened kernel policy may forbid to load any",
            )
        start = end
