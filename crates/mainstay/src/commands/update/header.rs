//! What a program was built for, and how long its file has to be, read off its header.
//!
//! Pure: any bytes get an answer. ELF, and Mach-O for one processor of 64 bits. Whether a program that fits
//! also runs is found out by running it.

use std::fmt;

/// How much of a file [`Header::read`] looks at.
pub(super) const HEAD: usize = 64;

/// The longest table that is believed; that of a real program has a few entries.
const MAX_TABLE: u64 = 4 * 1024 * 1024;

/// What the beginning of a program says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) platform: Platform,
    /// Where the parts are described that are loaded when the program is run.
    pub(super) parts: Table,
    /// Where the tables end, as far as that is known without reading them.
    end: u64,
}

/// What a program was built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Platform {
    format: Format,
    order: Order,
    machine: u32,
}

/// A part of the file that describes others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Why a file is not taken for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeaderError {
    #[error("it is no program")]
    Foreign,
    #[error("it is a part of a program only")]
    NotExecutable,
    #[error("its header makes no sense")]
    Senseless,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Elf32,
    Elf64,
    MachO,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Header {
    /// Reads the first [`HEAD`] bytes of a file, or all of one that is shorter.
    pub(super) fn read(head: &[u8]) -> Result<Self, HeaderError> {
        match head {
            [0x7f, b'E', b'L', b'F', class, order, ..] => {
                let order = match order {
                    1 => Order::Little,
                    2 => Order::Big,
                    _ => return Err(HeaderError::Senseless),
                };
                let fields = Fields { bytes: head, order };
                match class {
                    1 => elf(fields, &ELF32),
                    2 => elf(fields, &ELF64),
                    _ => Err(HeaderError::Senseless),
                }
            }
            [0xcf, 0xfa, 0xed, 0xfe, ..] => mach_o(Fields { bytes: head, order: Order::Little }),
            _ => Err(HeaderError::Foreign),
        }
    }

    /// How long the file must be at least, given the bytes of [`Header::parts`].
    pub(super) fn extent(&self, parts: &[u8]) -> u64 {
        let fields = Fields { bytes: parts, order: self.platform.order };
        let end = match self.platform.format {
            Format::Elf32 => furthest_segment(fields, &ELF32),
            Format::Elf64 => furthest_segment(fields, &ELF64),
            Format::MachO => furthest_command(fields),
        };
        end.max(self.end)
    }
}

impl Table {
    /// One that is short enough to be read.
    fn new(offset: u64, entries: u64, size: u64) -> Result<Self, HeaderError> {
        let len = entries.saturating_mul(size);
        if len > MAX_TABLE || offset.checked_add(len).is_none() {
            return Err(HeaderError::Senseless);
        }
        Ok(Self { offset, len })
    }

    fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// Where the fields of an ELF file are.
struct Elf {
    format: Format,
    /// Whether offsets have eight bytes rather than four.
    wide: bool,
    segments: usize,
    sections: usize,
    /// Size and number of segments; those of sections follow.
    counts: usize,
    segment_size: u16,
    /// Of a segment: its place in the file, and its length there.
    place: usize,
    length: usize,
}

const ELF32: Elf = Elf {
    format: Format::Elf32,
    wide: false,
    segments: 28,
    sections: 32,
    counts: 42,
    segment_size: 32,
    place: 4,
    length: 16,
};

const ELF64: Elf = Elf {
    format: Format::Elf64,
    wide: true,
    segments: 32,
    sections: 40,
    counts: 54,
    segment_size: 56,
    place: 8,
    length: 32,
};

fn elf(fields: Fields<'_>, elf: &Elf) -> Result<Header, HeaderError> {
    const PROGRAM: u16 = 2;
    const RELOCATABLE: u16 = 3;
    let kind = fields.u16(16).ok_or(HeaderError::Senseless)?;
    if !matches!(kind, PROGRAM | RELOCATABLE) {
        return Err(HeaderError::NotExecutable);
    }
    let read = || {
        let count = |nth: usize| fields.u16(elf.counts + 2 * nth);
        Some((
            fields.u16(18)?,
            (fields.word(elf.segments, elf.wide)?, count(0)?, count(1)?),
            (fields.word(elf.sections, elf.wide)?, count(2)?, count(3)?),
        ))
    };
    let (machine, segments, sections) = read().ok_or(HeaderError::Senseless)?;
    let (offset, size, number) = segments;
    if number == 0 || size != elf.segment_size {
        return Err(HeaderError::Senseless);
    }
    let parts = Table::new(offset, number.into(), size.into())?;
    let (offset, size, number) = sections;
    let sections = Table::new(offset, number.into(), size.into())?;
    let platform =
        Platform { format: elf.format, order: fields.order, machine: u32::from(machine) };
    Ok(Header { platform, parts, end: parts.end().max(sections.end()) })
}

fn furthest_segment(fields: Fields<'_>, elf: &Elf) -> u64 {
    let size = usize::from(elf.segment_size);
    let ends = fields.bytes.chunks_exact(size).filter_map(|bytes| {
        let segment = Fields { bytes, order: fields.order };
        let place = segment.word(elf.place, elf.wide)?;
        Some(place.saturating_add(segment.word(elf.length, elf.wide)?))
    });
    ends.max().unwrap_or(0)
}

/// The length of a Mach-O header of 64 bits; what describes the parts follows it.
const MACH_O: u64 = 32;

fn mach_o(fields: Fields<'_>) -> Result<Header, HeaderError> {
    const EXECUTE: u32 = 2;
    let read = || Some((fields.u32(4)?, fields.u32(12)?, fields.u32(20)?));
    let (machine, kind, size) = read().ok_or(HeaderError::Senseless)?;
    if kind != EXECUTE {
        return Err(HeaderError::NotExecutable);
    }
    let parts = Table::new(MACH_O, 1, size.into())?;
    let platform = Platform { format: Format::MachO, order: fields.order, machine };
    Ok(Header { platform, parts, end: parts.end() })
}

fn furthest_command(mut fields: Fields<'_>) -> u64 {
    const SEGMENT: u32 = 0x19;
    let mut furthest = 0;
    while let (Some(command), Some(size)) = (fields.u32(0), fields.u32(4)) {
        if let (SEGMENT, Some(place), Some(length)) = (command, fields.u64(40), fields.u64(48)) {
            furthest = furthest.max(place.saturating_add(length));
        }
        // Each is at least as long as its first two fields.
        let size = usize::try_from(size).unwrap_or(usize::MAX).max(8);
        fields.bytes = fields.bytes.get(size..).unwrap_or_default();
    }
    furthest
}

/// Numbers among bytes.
#[derive(Clone, Copy)]
struct Fields<'a> {
    bytes: &'a [u8],
    order: Order,
}

impl Fields<'_> {
    fn u16(self, at: usize) -> Option<u16> {
        let bytes = *self.bytes.get(at..)?.first_chunk()?;
        Some(match self.order {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        })
    }

    fn u32(self, at: usize) -> Option<u32> {
        let bytes = *self.bytes.get(at..)?.first_chunk()?;
        Some(match self.order {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        })
    }

    fn u64(self, at: usize) -> Option<u64> {
        let bytes = *self.bytes.get(at..)?.first_chunk()?;
        Some(match self.order {
            Order::Little => u64::from_le_bytes(bytes),
            Order::Big => u64::from_be_bytes(bytes),
        })
    }

    /// Eight bytes, or four.
    fn word(self, at: usize, wide: bool) -> Option<u64> {
        if wide { self.u64(at) } else { self.u32(at).map(u64::from) }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = match self.format {
            Format::Elf32 => "32-bit ELF",
            Format::Elf64 => "64-bit ELF",
            Format::MachO => "Mach-O",
        };
        match (self.format, self.machine) {
            (Format::Elf32 | Format::Elf64, 3) => write!(f, "x86 ({format}")?,
            (Format::Elf32 | Format::Elf64, 40) => write!(f, "arm ({format}")?,
            (Format::Elf32 | Format::Elf64, 62) | (Format::MachO, 0x0100_0007) => {
                write!(f, "x86-64 ({format}")?;
            }
            (Format::Elf32 | Format::Elf64, 183) | (Format::MachO, 0x0100_000c) => {
                write!(f, "arm64 ({format}")?;
            }
            (Format::Elf32 | Format::Elf64, 243) => write!(f, "riscv ({format}")?,
            (_, other) => write!(f, "processor {other} ({format}")?,
        }
        match self.order {
            Order::Little => f.write_str(")"),
            Order::Big => f.write_str(", big-endian)"),
        }
    }
}

#[cfg(test)]
mod tests;
