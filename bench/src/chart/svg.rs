//! The few SVG elements that a chart needs.

use std::fmt::Write;

/// Which end of a text its position is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Anchor {
    /// Its beginning.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// A document being written.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    elements: String,
}

impl Svg {
    /// A white sheet.
    pub(super) fn new(width: f64, height: f64) -> Self {
        let elements = format!("<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n");
        Self { width, height, elements }
    }

    pub(super) fn height(&self) -> f64 {
        self.height
    }

    /// Puts another sheet on this one, its upper edge at `y`.
    pub(super) fn place(&mut self, y: f64, other: Self) {
        self.add(format_args!("<svg y=\"{y}\" width=\"{}\" height=\"{}\">", other.width, other.height));
        self.elements += &other.elements;
        self.add(format_args!("</svg>"));
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.elements.write_fmt(element);
        self.elements.push('\n');
    }

    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#222222\">{text}</text>"
        ));
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str, width: f64) {
        self.add(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        ));
    }

    pub(super) fn bar(&mut self, (left, top): (f64, f64), (right, bottom): (f64, f64), colour: &str) {
        let (width, height) = ((right - left).max(0.0), (bottom - top).max(0.0));
        self.add(format_args!(
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        ));
    }

    pub(super) fn polyline(&mut self, points: &[(f64, f64)], colour: &str) {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        self.add(format_args!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"));
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), colour: &str) {
        self.add(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
    }

    pub(super) fn finish(self) -> String {
        let Self { width, height, elements } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n{elements}</svg>\n"
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text(1.0, 2.0, Anchor::Middle, "a < b & c");
        let text = svg.finish();
        assert!(text.contains(">a &lt; b &amp; c</text>"), "{text}");
        assert!(text.contains("text-anchor=\"middle\""));
    }
}
