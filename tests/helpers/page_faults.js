// Run in a page: text with too little contrast (WCAG 2.2, 1.4.3), and a page that is wider than its screen.
const channel = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const luminance = ([red, green, blue]) => 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const parsed = (text) => { // any notation of CSS
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = text;
  pixel.fillRect(0, 0, 1, 1);
  return [...pixel.getImageData(0, 0, 1, 1).data].map((value) => value / 255);
};
const over = (top, below) => [0, 1, 2].map((at) => top[3] * top[at] + (1 - top[3]) * below[at]);
const behind = (element) => {
  const layers = [];
  for (let one = element; one; one = one.parentElement) layers.push(parsed(getComputedStyle(one).backgroundColor));
  return layers.reverse().reduce((below, layer) => over(layer, below), [1, 1, 1]);
};

const found = new Set();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  const shown = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  if (!node.data.trim() || !shown || element.closest("script, style, noscript, svg")) continue;
  const style = getComputedStyle(element), size = parseFloat(style.fontSize);
  const back = behind(element);
  const [dark, light] = [back, over(parsed(style.color), back)].map(luminance).sort((one, other) => one - other);
  const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
  const ratio = (light + 0.05) / (dark + 0.05);
  if (ratio < needed) found.add(`${ratio.toFixed(2)} of ${style.color}: ${node.data.trim().slice(0, 40)}`);
}
const { scrollWidth } = document.documentElement;
if (scrollWidth > innerWidth) found.add(`${scrollWidth} pixels wide on a screen of ${innerWidth}`);
return [...found];
