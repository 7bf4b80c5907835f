// Draws a dashboard's panels from query results, for pictures: the grid, the frames, graphs, tables, numbers and bars are
// Grafana's own components with Grafana's own units, colours and overrides. Three kinds of panel are not part of its
// component library; simple stand-ins draw the same data for them: state timeline, heatmap, scatter plot.
//
// draw.py puts the input into window.INPUT: {panels, mode, width, range: {start, end}}. Every target of a panel carries
// its `result` as Prometheus answered it.

import { useLayoutEffect, useRef } from 'react';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';
import * as G from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, PanelContextProvider, TimeSeries, VizLegend, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

declare global {
  interface Window {
    INPUT: any;
  }
}

const { panels, mode, width, range } = window.INPUT;
const theme = G.createTheme({ colors: { mode } });
const text = theme.colors.text.primary;
const asIs = (value: string) => value;

// What the application around the components registers.
const transformers = [
  ['merge', G.standardTransformers.mergeTransformer],
  ['organize', G.standardTransformers.organizeFieldsTransformer],
  ['joinByField', G.standardTransformers.joinByFieldTransformer],
];
G.standardTransformersRegistry.setInit(
  () =>
    transformers.map(([id, transformation]: any) => {
      // Grafana 13 asks for it by a call, Grafana 12 takes it as it is.
      const { operator, defaultOptions } = transformation;
      return { id, name: id, transformation: Object.assign(async () => transformation, { id, operator, defaultOptions }) };
    }) as any
);
const standard = 'unit decimals min max color thresholds mappings links noValue displayName';
const custom =
  'width minWidth align hidden hideFrom cellOptions filterable inspect wrapText lineWidth fillOpacity lineStyle stacking ' +
  'axisPlacement axisLabel axisSoftMax scaleDistribution drawStyle spanNulls showPoints thresholdsStyle lineInterpolation';
const option = (path: string, isCustom: boolean) => ({
  id: isCustom ? `custom.${path}` : path,
  path,
  isCustom,
  name: path,
  editor: () => null,
  override: () => null,
  process: (value: unknown) => value,
  shouldApply: () => true,
  settings: {},
});
const options = new G.FieldConfigOptionsRegistry(
  () => [...standard.split(' ').map((p) => option(p, false)), ...custom.split(' ').map((p) => option(p, true))] as any
);
for (const each of options.list() as any[]) {
  each.isCustom = each.id.startsWith('custom.');
}
G.standardFieldConfigEditorRegistry.setInit(() => []);

// --- From Prometheus' answers to frames, as the data source does it ---------------------------------------------------

function tableFrame(target: any, several: boolean) {
  const labels = [...new Set<string>(target.result.flatMap((row: any) => Object.keys(row.metric)))].sort();
  return G.createDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: G.FieldType.time, values: target.result.map((row: any) => row.value[0] * 1000) },
      ...labels.map((label) => ({
        name: label,
        type: G.FieldType.string,
        values: target.result.map((row: any) => row.metric[label] ?? ''),
      })),
      {
        name: several ? `Value #${target.refId}` : 'Value',
        type: G.FieldType.number,
        values: target.result.map((row: any) => Number(row.value[1])),
      },
    ],
  });
}

function seriesFrame(target: any, series: any) {
  const legend = (target.legendFormat ?? '').replace(/\{\{\s*(\w+)\s*\}\}/g, (_: string, l: string) => series.metric[l] ?? '');
  const samples: Array<[number, string]> = series.values ?? [series.value];
  const known = new Map(samples.map(([t, value]) => [Math.round(t * 1000), Number(value)]));
  const times: number[] = [];
  if (series.values) {
    for (let t = target.start; t <= target.end + 0.001; t += target.step) {
      times.push(Math.round(t * 1000));
    }
  } else {
    times.push(...known.keys());
  }
  return G.createDataFrame({
    refId: target.refId,
    name: legend,
    fields: [
      { name: 'Time', type: G.FieldType.time, values: times, config: { interval: (target.step ?? 15) * 1000 } },
      {
        name: 'Value',
        type: G.FieldType.number,
        values: times.map((t) => known.get(t) ?? null),
        labels: series.metric,
        config: { displayNameFromDS: legend },
      },
    ],
  });
}

async function prepared(panel: any): Promise<G.DataFrame[]> {
  let frames: G.DataFrame[] = panel.targets.flatMap((target: any) => {
    if (target.format === 'table') {
      return target.result.length ? [tableFrame(target, panel.targets.length > 1)] : [];
    }
    return target.result.map((series: any) => seriesFrame(target, series));
  });
  if (panel.transformations?.length) {
    frames = await lastValueFrom(G.transformDataFrame(panel.transformations, frames));
  }
  const shown = G.applyFieldOverrides({
    data: frames,
    fieldConfig: panel.fieldConfig,
    replaceVariables: asIs,
    theme,
    timeZone: 'utc',
    fieldConfigRegistry: options as any,
  });
  for (const field of shown.flatMap((frame) => frame.fields)) {
    field.state = { ...field.state, displayName: undefined as any };
  }
  for (const frame of shown) {
    for (const field of frame.fields) {
      field.state!.displayName = G.getFieldDisplayName(field, frame, shown);
    }
  }
  return shown;
}

// --- Stand-ins --------------------------------------------------------------------------------------------------------

type Draw = (pen: CanvasRenderingContext2D, width: number, height: number) => void;

function Canvas({ draw, width, height }: { draw: Draw; width: number; height: number }) {
  const ref = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    ref.current!.width = width;
    ref.current!.height = height;
    const pen = ref.current!.getContext('2d')!;
    pen.font = '12px Inter';
    draw(pen, width, height);
  });
  return <canvas ref={ref} style={{ width, height }} />;
}

const AXIS = 25;
const NICE_SECONDS = [60, 120, 300, 600, 900, 1800, 3600, 7200];

function timeAxis(pen: CanvasRenderingContext2D, left: number, wide: number, top: number) {
  const span = range.end - range.start;
  const step = NICE_SECONDS.find((s) => span / s <= Math.max(2, Math.floor(wide / 90))) ?? 14400;
  pen.fillStyle = text;
  pen.textAlign = 'center';
  pen.textBaseline = 'top';
  for (let t = Math.ceil(range.start / step) * step; t < range.end - step / 4; t += step) {
    pen.fillText(new Date(t * 1000).toISOString().slice(11, 16), left + ((t - range.start) / span) * wide, top + 5);
  }
}

/** Fill from each sample that is there to the next; neighbours of one colour in one stroke. */
function cells(
  pen: CanvasRenderingContext2D,
  times: number[],
  left: number,
  wide: number,
  top: number,
  tall: number,
  colour: (index: number) => string | undefined
) {
  const span = range.end - range.start;
  const x = (t: number) => left + ((t / 1000 - range.start) / span) * wide;
  for (let i = 0; i + 1 < times.length; ) {
    const filled = colour(i);
    let next = i + 1;
    while (next + 1 < times.length && colour(next) === filled) {
      next++;
    }
    if (filled) {
      pen.fillStyle = filled;
      pen.fillRect(x(times[i]), top, x(times[next]) - x(times[i]), tall);
    }
    i = next;
  }
}

function StateTimeline({ panel, data, width, height }: any) {
  const legend = 30;
  const wordsOf = (frame: any) => frame.fields[1].config.mappings[0].options;
  const known = new Map(data.flatMap((frame: any) => Object.values<any>(wordsOf(frame)).map((word) => [word.text, word.color])));
  const items = [...known].map(([label, color]) => ({ label, color, yAxis: 1 }));
  const draw: Draw = (pen, wide, tall) => {
    const left = 12 + Math.max(...data.map((frame: any) => pen.measureText(frame.fields[1].state.displayName).width));
    const row = (tall - AXIS) / data.length;
    const bar = row * panel.options.rowHeight;
    data.forEach((frame: any, i: number) => {
      const [time, value] = frame.fields;
      pen.fillStyle = text;
      pen.textAlign = 'right';
      pen.textBaseline = 'middle';
      pen.fillText(value.state.displayName, left - 8, row * (i + 0.5));
      const top = row * i + (row - bar) / 2;
      cells(pen, time.values, left, wide - left, top, bar, (j) => wordsOf(frame)[String(value.values[j])]?.color);
    });
    timeAxis(pen, left, wide - left, tall - AXIS);
  };
  return (
    <div>
      <Canvas draw={draw} width={width} height={height - legend} />
      <VizLegend displayMode={'list' as any} placement="bottom" items={items as any} />
    </div>
  );
}

const VIRIDIS = '#440154 #482475 #414487 #355f8d #2a788e #21918c #22a884 #44bf70 #7ad151 #bddf26 #fde725'.split(' ');

function Heatmap({ data, width, height }: any) {
  const edge = (frame: any) => Number(frame.fields[1].labels.le.replace('+Inf', 'Infinity'));
  const buckets = [...data].sort((a, b) => edge(a) - edge(b));
  const draw: Draw = (pen, wide, tall) => {
    const left = 46;
    const row = (tall - AXIS) / buckets.length;
    buckets.forEach((frame, i) => {
      const [time, upTo] = frame.fields;
      const below = buckets[i - 1]?.fields[1].values;
      const top = tall - AXIS - row * (i + 1);
      cells(pen, time.values, left, wide - left, top, Math.ceil(row), (j) => {
        const share = upTo.values[j] === null ? 0 : upTo.values[j] - (below?.[j] ?? 0);
        return share > 1e-9 ? VIRIDIS[Math.round(Math.sqrt(Math.min(1, share)) * 10)] : undefined;
      });
      if (i % 4 === 3) {
        pen.fillStyle = text;
        pen.textAlign = 'right';
        pen.textBaseline = 'middle';
        pen.fillText(`${Math.round(edge(frame) * 100)}%`, left - 6, top);
      }
    });
    timeAxis(pen, left, wide - left, tall - AXIS);
  };
  return <Canvas draw={draw} width={width} height={height} />;
}

function Scatter({ data, width, height }: any) {
  const [x, y] = data[0].fields.filter((field: any) => field.type === G.FieldType.number);
  const most = (field: any) => 1.08 * Math.max(...field.values.filter(Number.isFinite));
  const ticks = (to: number) => {
    const unit = 10 ** Math.floor(Math.log10(to / 4));
    const step = [1, 2, 5, 10].map((k) => k * unit).find((s) => to / s <= 6)!;
    return Array.from({ length: Math.floor(to / step) + 1 }, (_, i) => i * step);
  };
  const shown = (field: any, value: number) => G.formattedValueToString(field.display(value));
  const draw: Draw = (pen, wide, tall) => {
    const [left, top, bottom] = [92, 8, tall - 45];
    const right = wide - 12;
    const [toX, toY] = [most(x), most(y)];
    const px = (value: number) => left + (value / toX) * (right - left);
    const py = (value: number) => bottom - (value / toY) * (bottom - top);
    pen.fillStyle = text;
    pen.strokeStyle = 'rgba(204, 204, 220, 0.12)';
    for (const value of ticks(toY)) {
      pen.strokeRect(left, py(value), right - left, 0);
      pen.textAlign = 'right';
      pen.textBaseline = 'middle';
      pen.fillText(shown(y, value), left - 6, py(value));
    }
    pen.textAlign = 'center';
    pen.textBaseline = 'top';
    ticks(toX).forEach((value) => pen.fillText(shown(x, value), px(value), bottom + 5));
    pen.fillText(x.config.custom.axisLabel, (left + right) / 2, bottom + 25);
    pen.save();
    pen.translate(4, bottom / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(y.config.custom.axisLabel, 0, 0);
    pen.restore();
    const colour = y.config.color.fixedColor;
    x.values.forEach((value: number | null, i: number) => {
      if (value !== null && y.values[i] !== null) {
        pen.beginPath();
        pen.arc(px(value), py(y.values[i]), 2.5, 0, 2 * Math.PI);
        pen.fillStyle = `${colour}73`;
        pen.fill();
        pen.strokeStyle = colour;
        pen.stroke();
      }
    });
  };
  return <Canvas draw={draw} width={width} height={height} />;
}

// --- Grafana's components ---------------------------------------------------------------------------------------------

function values(panel: any, data: G.DataFrame[]) {
  return G.getFieldDisplayValues({
    fieldConfig: panel.fieldConfig,
    reduceOptions: panel.options.reduceOptions,
    replaceVariables: asIs,
    theme,
    data,
    sparkline: panel.options.graphMode === 'area',
    timeZone: 'utc',
  });
}

function Numbers({ panel, data, width, height }: any) {
  const { colorMode, graphMode, justifyMode, textMode, orientation, text } = panel.options;
  return (
    <VizRepeater
      {...{ width, height, source: data, orientation }}
      getValues={() => values(panel, data)}
      renderValue={({ value, width, height, count }: any) => (
        <BigValue
          value={value.display}
          sparkline={graphMode === 'area' ? value.sparkline : undefined}
          {...{ width, height, count, theme, colorMode, graphMode, justifyMode, textMode, text }}
          wideLayout
        />
      )}
    />
  );
}

const longest = (texts: string[]) => texts.reduce((one, other) => (other.length > one.length ? other : one), '');

function Bars({ panel, data, width, height }: any) {
  const { orientation, displayMode, showUnfilled, valueMode, namePlacement, minVizHeight, maxVizHeight } = panel.options;
  const listed = values(panel, data);
  const alignmentFactors = {
    text: longest(listed.map((each) => G.formattedValueToString(each.display))),
    title: longest(listed.map((each) => each.display.title ?? '')),
  };
  return (
    <VizRepeater
      {...{ width, height, source: data, orientation, minVizHeight, maxVizHeight, minVizWidth: 8, itemSpacing: 8 }}
      getValues={() => listed}
      renderValue={({ value, width, height, isOverflow }: any) => (
        <BarGauge
          value={value.display}
          field={value.field}
          display={value.view?.getFieldDisplayProcessor(value.colIndex)}
          valueDisplayMode={valueMode}
          itemSpacing={8}
          lcdCellWidth={12}
          {...{ width, height, orientation, theme, displayMode, alignmentFactors, showUnfilled, namePlacement, isOverflow }}
        />
      )}
    />
  );
}

function Graph({ panel, data, width, height }: any) {
  const timeRange: any = { from: G.dateTime(range.start * 1000), to: G.dateTime(range.end * 1000), raw: {} };
  return (
    <PanelContextProvider value={{ eventBus: new G.EventBusSrv(), sync: () => 0, eventsScope: '' } as any}>
      <TimeSeries
        frames={data}
        structureRev={1}
        timeZone="utc"
        legend={panel.options.legend}
        options={panel.options}
        replaceVariables={asIs}
        {...{ timeRange, width, height }}
      >
        {() => null}
      </TimeSeries>
    </PanelContextProvider>
  );
}

function Table({ panel, data, width, height }: any) {
  return (
    <TableNG
      data={data[0]}
      cellHeight={panel.options.cellHeight}
      // Grafana 13 calls it sortBy, Grafana 12 initialSortBy.
      {...({ sortBy: panel.options.sortBy, initialSortBy: panel.options.sortBy } as any)}
      fieldConfig={panel.fieldConfig}
      enableVirtualization={false}
      getActions={() => []}
      {...({ width, height, showTypeIcons: false, structureRev: 1, replaceVariables: asIs } as any)}
    />
  );
}

const KINDS: Record<string, any> = {
  bargauge: Bars,
  heatmap: Heatmap,
  stat: Numbers,
  'state-timeline': StateTimeline,
  table: Table,
  timeseries: Graph,
  xychart: Scatter,
};

function NoData({ panel, height }: { panel: any; height: number }) {
  const style = { height, display: 'grid', placeItems: 'center', color: theme.colors.text.secondary };
  return <div style={style}>{panel.fieldConfig.defaults.noValue ?? 'No data'}</div>;
}

// --- The page ---------------------------------------------------------------------------------------------------------

const ROW = 38;
const COLUMN = (width - 8) / 24;

async function main() {
  await document.fonts.ready;
  const shown: Array<{ panel: any; data: G.DataFrame[] }> = [];
  for (const panel of panels) {
    shown.push({ panel, data: panel.type === 'row' ? [] : await prepared(panel) });
  }
  const height = 8 + ROW * Math.max(...panels.map((panel: any) => panel.gridPos.y + panel.gridPos.h));
  const root = document.getElementById('root')!;
  createRoot(root).render(
    <G.ThemeContext.Provider value={theme}>
      <GlobalStyles hackNoBackdropBlur={true} isExtensionSidebarOpen={false} />
      <div style={{ position: 'relative', width, height, background: theme.colors.background.canvas }}>
        {shown.map(({ panel, data }) => {
          const { x, y, w, h } = panel.gridPos;
          const [wide, tall] = [w * COLUMN - 8, h * ROW - 8];
          const style: any = { position: 'absolute', left: 8 + x * COLUMN, top: 8 + y * ROW, width: wide, height: tall };
          if (panel.type === 'row') {
            const heading = { ...style, color: text, fontSize: 16, fontWeight: 500 };
            return <div key={panel.id} style={heading}>{`⌄ ${panel.title}`}</div>;
          }
          const Kind = KINDS[panel.type];
          return (
            <div key={panel.id} style={style}>
              <PanelChrome title={panel.title} description={panel.description} width={wide} height={tall}>
                {(width, height) =>
                  data.some((frame) => frame.length > 0) ? (
                    <Kind panel={panel} data={data} width={width} height={height} />
                  ) : (
                    <NoData panel={panel} height={height} />
                  )
                }
              </PanelChrome>
            </div>
          );
        })}
      </div>
    </G.ThemeContext.Provider>
  );
}

main();
